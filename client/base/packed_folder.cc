#include "client/base/packed_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "common/data/folder.h"
#include "common/data/row_reader.h"
#include "common/io/file.h"

namespace sft::client {
namespace {

constexpr std::string_view kFileName = "/rows.jsonl.zst";

// Writes text to a file, packed.
class PackedWriter {
 public:
  explicit PackedWriter(std::string path) : path_(std::move(path)), out_(ZSTD_CStreamOutSize(), 0) {
    fd_ = io::UniqueFd(
        open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, io::kPrivateMode));
    if (!fd_.valid()) status_ = ErrnoStatus(path_, errno);
  }
  ~PackedWriter() { ZSTD_freeCStream(stream_); }
  PackedWriter(const PackedWriter&) = delete;
  PackedWriter& operator=(const PackedWriter&) = delete;

  absl::Status Add(std::string_view text, bool last = false) {
    SFT_RETURN_IF_ERROR(status_);
    ZSTD_inBuffer in = {text.data(), text.size(), 0};
    for (;;) {
      ZSTD_outBuffer out = {out_.data(), out_.size(), 0};
      const size_t left =
          ZSTD_compressStream2(stream_, &out, &in, last ? ZSTD_e_end : ZSTD_e_continue);
      if (stream_ == nullptr || ZSTD_isError(left) != 0) return ResourceExhausted("no memory");
      SFT_RETURN_IF_ERROR(
          io::WriteAll(fd_.get(), std::string_view(out_).substr(0, out.pos), path_));
      if (last ? left == 0 : in.pos == in.size) return absl::OkStatus();
    }
  }

 private:
  const std::string path_;
  io::UniqueFd fd_;
  absl::Status status_;
  std::string out_;
  ZSTD_CStream* const stream_ = ZSTD_createCStream();
};

}  // namespace

PackedFolder::PackedFolder(PackedFolder&& other) noexcept
    : dir_(std::exchange(other.dir_, "")),
      chosen_(std::move(other.chosen_)),
      files_(other.files_) {}

PackedFolder& PackedFolder::operator=(PackedFolder&& other) noexcept {
  std::swap(dir_, other.dir_);
  std::swap(chosen_, other.chosen_);
  std::swap(files_, other.files_);
  return *this;
}

PackedFolder::~PackedFolder() {
  if (!dir_.empty()) (void)io::RemoveAll(dir_);
}

std::string PackedFolder::path() const { return dir_ + std::string(kFileName); }

absl::StatusOr<PackedFolder> PackedFolder::Make(const std::string& name,
                                                const data::RowNames& names) {
  SFT_ASSIGN_OR_RETURN(const data::FolderFiles files,
                       data::FilesOfFolder(data::ParseFolderName(name)));
  PackedFolder packed;
  packed.chosen_ = files.chosen;
  packed.files_ = static_cast<int64_t>(files.paths.size());
  SFT_ASSIGN_OR_RETURN(packed.dir_, io::MakeTempDir("sftctl-data"));
  PackedWriter writer(packed.path());
  for (const std::string& path : files.paths) {
    const auto take = [&](int64_t, std::string_view row) -> absl::StatusOr<bool> {
      // JSON has line ends between its parts alone.
      std::string line(row);
      std::ranges::replace_if(
          line, [](char c) { return c == '\n' || c == '\r'; }, ' ');
      line += '\n';
      SFT_RETURN_IF_ERROR(writer.Add(line));
      return true;
    };
    SFT_RETURN_IF_ERROR(Annotate(data::ReadRows(path, path, {.names = &names}, take), path));
  }
  SFT_RETURN_IF_ERROR(writer.Add("", /*last=*/true));
  return packed;
}

bool NamesFolder(const std::string& name) {
  return io::IsDirectory(data::ParseFolderName(name).path);
}

bool IsFolderOfDocuments(const std::string& name) {
  if (!NamesFolder(name)) return false;
  const auto files = data::FilesOfFolder(data::ParseFolderName(name));
  return files.ok() && !files->paths.empty() &&
         std::ranges::all_of(files->paths, [](const std::string& path) {
           return data::ContainerOf(path, "") == data::Container::kText;
         });
}

}  // namespace sft::client
