#include "server/blob/blob_store.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>

#include "common/base/ids.h"
#include "common/io/sha256.h"

namespace sft::server {
namespace {

absl::Status CheckName(const std::string& sha256) {
  if (io::IsSha256Hex(sha256)) return absl::OkStatus();
  return InvalidArgument(fmt::format("\"{}\" is not a SHA-256: 64 lower-case hexadecimal digits",
                                     sha256.substr(0, 80)));
}

constexpr std::string_view kPart = ".part", kBrought = ".brought";
constexpr char kUploads[] = "uploads", kDamaged[] = "damaged";
// Behind the uploader, whose name has no such sign.
constexpr char kUnnamed[] = "~unnamed";
// Bytes per read.
constexpr int64_t kChunkBytes = int64_t{1} << 20;

std::string KeyOf(const std::string& sha256, const std::string& of) {
  return of.empty() ? sha256 : sha256 + "." + of;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlobStore>> BlobStore::Open(const std::string& dir) {
  SFT_RETURN_IF_ERROR(io::MakeDirs(dir + "/uploads"));
  // Of a server that was killed: nobody can go on with them.
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> uploads, io::ListDir(dir + "/uploads"));
  for (const std::string& name : uploads) {
    if (!name.ends_with(std::string(kUnnamed) + std::string(kPart))) continue;
    SFT_RETURN_IF_ERROR(io::RemoveAll(fmt::format("{}/uploads/{}", dir, name)));
  }
  return std::unique_ptr<BlobStore>(new BlobStore(dir));
}

std::string BlobStore::PathIn(const std::string& dir, const std::string& sha256) {
  return fmt::format("{}/{}/{}", dir, sha256.substr(0, 2), sha256);
}

std::string BlobStore::PartPath(const std::string& key) const {
  return fmt::format("{}/uploads/{}{}", dir_, key, kPart);
}

std::string BlobStore::BroughtPath(const std::string& key) const {
  return fmt::format("{}/uploads/{}{}", dir_, key, kBrought);
}

absl::StatusOr<BlobStore::Stat> BlobStore::Find(const std::string& sha256,
                                                const std::string& of) const {
  SFT_RETURN_IF_ERROR(CheckName(sha256));
  Stat stat;
  if (const auto size = io::FileSize(PathIn(dir_, sha256)); size.ok()) {
    stat.complete = true;
    stat.size = *size;
  }
  if (const auto received = io::FileSize(PartPath(KeyOf(sha256, of))); received.ok()) {
    stat.received = *received;
  }
  return stat;
}

absl::StatusOr<std::map<std::string, int64_t>> BlobStore::Unfinished(const std::string& of) const {
  return FilesOf(of, /*whole=*/false);
}

absl::StatusOr<std::map<std::string, int64_t>> BlobStore::Held(const std::string& of) const {
  return FilesOf(of, /*whole=*/true);
}

absl::StatusOr<std::map<std::string, int64_t>> BlobStore::FilesOf(const std::string& of,
                                                                  bool whole) const {
  const std::string folder = dir_ + "/uploads";
  std::map<std::string, int64_t> files;
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(folder));
  for (const std::string& name : names) {
    const std::string hash = name.substr(0, name.find('.'));
    const std::string key = KeyOf(hash, of);
    const bool is_part = name == key + std::string(kPart);
    if (!is_part && !(whole && name == key + std::string(kBrought))) continue;
    // An upload that has just ended is no longer listed, and a removed blob takes no room.
    const absl::StatusOr<int64_t> bytes =
        io::FileSize(is_part ? folder + "/" + name : PathIn(dir_, hash));
    if (bytes.ok()) files[hash] = std::max(files[hash], *bytes);
  }
  return files;
}

absl::Status BlobStore::MarkBrought(const std::string& sha256, const std::string& of) {
  SFT_RETURN_IF_ERROR(CheckName(sha256));
  // An empty file cannot be torn, and losing it costs one more upload.
  return io::AppendFile::Open(BroughtPath(KeyOf(sha256, of))).status();
}

bool BlobStore::WasBrought(const std::string& sha256, const std::string& of) const {
  return io::IsSha256Hex(sha256) && io::Exists(BroughtPath(KeyOf(sha256, of)));
}

absl::StatusOr<std::string> BlobStore::PathOf(const std::string& sha256) const {
  SFT_RETURN_IF_ERROR(CheckName(sha256));
  const std::string path = PathIn(dir_, sha256);
  if (!io::Exists(path)) return NotFound(fmt::format("no blob {}: it was not uploaded", sha256));
  return path;
}

int64_t BlobStore::damaged() const {
  return static_cast<int64_t>(io::ListDir(fmt::format("{}/{}", dir_, kDamaged))
                                  .value_or(std::vector<std::string>())
                                  .size());
}

absl::Status BlobStore::PutAside(const std::string& sha256, int fd, const std::string& why) {
  const std::string path = PathIn(dir_, sha256);
  const std::string aside = fmt::format("{}/{}/{}", dir_, kDamaged, sha256);
  const absl::Status lost = DataLoss(fmt::format(
      "blob {} is damaged on the server's disk ({}); it was put aside as {}/{}/{} of the "
      "server's data folder",
      sha256, why, dir_.substr(dir_.rfind('/') + 1), kDamaged, sha256));
  struct stat read {
  }, there{};
  const bool same = ::fstat(fd, &read) == 0 && ::stat(path.c_str(), &there) == 0 &&
                    read.st_ino == there.st_ino && read.st_dev == there.st_dev;
  if (!same) return lost;  // another reader quarantined it before
  spdlog::error("{}", Message(lost));
  absl::Status moved = io::MakeDirs(fmt::format("{}/{}", dir_, kDamaged));
  if (moved.ok()) moved = io::RenameDurably(path, aside);
  if (!moved.ok()) spdlog::error("blob {} cannot be put aside: {}", sha256, Message(moved));
  return lost;
}

absl::Status BlobStore::Read(const std::string& sha256, int64_t offset, const Sink& sink) {
  SFT_ASSIGN_OR_RETURN(const std::string path, PathOf(sha256));
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(path));
  SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(fd.get(), path));
  if (offset < 0 || offset > size) {
    return OutOfRange(fmt::format("offset {} of {} bytes", offset, size));
  }
  const bool whole = offset == 0;
  io::Sha256 hash;
  std::string bytes;
  do {
    bytes.resize(static_cast<size_t>(std::min(kChunkBytes, size - offset)));
    const absl::StatusOr<size_t> got =
        io::ReadAt(fd.get(), offset, bytes.data(), bytes.size(), path);
    // The error may be temporary, for example on a network disk: an unreadable file is not yet
    // known to be damaged.
    if (!got.ok()) return Unavailable(Message(got.status()));
    if (*got < bytes.size()) return PutAside(sha256, fd.get(), "it has become shorter");
    if (whole) hash.Update(bytes);
    if (!sink(offset, bytes, size)) return Aborted("the reader is gone");
    offset += static_cast<int64_t>(*got);
  } while (offset < size);
  if (!whole) return absl::OkStatus();
  const std::string found = hash.FinishHex();
  if (found == sha256) return absl::OkStatus();
  return PutAside(sha256, fd.get(), "its bytes hash to " + found);
}

absl::Status BlobStore::Remove(const std::string& sha256) {
  SFT_RETURN_IF_ERROR(CheckName(sha256));
  return io::RemoveAll(PathIn(dir_, sha256));
}

absl::Status BlobStore::DropUpload(const std::string& file) {
  SFT_RETURN_IF_ERROR(CheckName(file.substr(0, file.find('.'))));
  if (file.find('/') != file.npos) return InvalidArgument("a file of an upload is no path");
  const MutexLock lock(mutex_);
  if (file.ends_with(kPart) && uploading_.contains(file.substr(0, file.size() - kPart.size()))) {
    return absl::OkStatus();
  }
  return io::RemoveAll(dir_ + "/uploads/" + file);
}

absl::Status BlobStore::Forget(const std::string& sha256, const std::string& of) {
  const std::string key = KeyOf(sha256, of);
  SFT_RETURN_IF_ERROR(DropUpload(key + std::string(kPart)));
  return DropUpload(key + std::string(kBrought));
}

absl::StatusOr<BlobStore::Old> BlobStore::OlderThan(int64_t unix_seconds) const {
  Old old;
  const auto is_old = [&](const std::string& path) {
    struct stat info {};
    return stat(path.c_str(), &info) == 0 && info.st_mtime < unix_seconds;
  };
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> folders, io::ListDir(dir_));
  for (const std::string& folder : folders) {
    if (folder == kDamaged) continue;
    SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(dir_ + "/" + folder));
    for (const std::string& name : names) {
      const std::string hash = name.substr(0, name.find('.'));
      if (!io::IsSha256Hex(hash) || !is_old(fmt::format("{}/{}/{}", dir_, folder, name))) continue;
      if (folder != kUploads) {
        old.blobs.push_back(hash);
      } else if (name.ends_with(kPart) || name.ends_with(kBrought)) {
        old.uploads.push_back(name);
      }
    }
  }
  return old;
}

absl::StatusOr<std::unique_ptr<BlobStore::Upload>> BlobStore::Begin(const std::string& sha256,
                                                                    int64_t size, int64_t offset,
                                                                    const std::string& of,
                                                                    bool again) {
  SFT_RETURN_IF_ERROR(CheckName(sha256));
  if (size < 0) return InvalidArgument(fmt::format("size {} of an upload", size));
  if (!again && io::Exists(PathIn(dir_, sha256)))
    return AlreadyExists(fmt::format("blob {} is complete", sha256));
  const std::string key = KeyOf(sha256, of);
  {
    MutexLock lock(mutex_);
    if (!uploading_.insert(key).second) {
      return Aborted(fmt::format("blob {} is being uploaded by another call: try again", sha256));
    }
  }
  const auto give_up = [&](absl::Status status) {
    MutexLock lock(mutex_);
    uploading_.erase(key);
    return status;
  };
  auto file = io::AppendFile::Open(PartPath(key));
  if (!file.ok()) return give_up(file.status());
  if (file->size() != offset) {
    return give_up(
        OutOfRange(fmt::format("upload of {} starts at {}, the server has {} bytes: ask "
                               "StatBlob and continue there",
                               sha256, offset, file->size())));
  }
  return std::unique_ptr<Upload>(new Upload(*this, sha256, key, size, *std::move(file)));
}

absl::StatusOr<std::unique_ptr<BlobStore::Upload>> BlobStore::BeginUnnamed(int64_t most,
                                                                           const std::string& of) {
  SFT_ASSIGN_OR_RETURN(std::unique_ptr<Upload> upload,
                       Begin(io::Sha256Hex(RandomUuid()), most, 0, of + kUnnamed));
  upload->named_ = false;
  return upload;
}

BlobStore::Upload::~Upload() {
  if (!named_) (void)io::RemoveAll(store_.PartPath(key_));  // nobody could find it again
  MutexLock lock(store_.mutex_);
  store_.uploading_.erase(key_);
}

absl::Status BlobStore::Upload::Discard(absl::Status why) {
  const absl::Status removed = io::RemoveAll(store_.PartPath(key_));
  return removed.ok() ? why : Annotate(why, Message(removed));
}

absl::Status BlobStore::Upload::Append(std::string_view bytes) {
  if (file_.size() + static_cast<int64_t>(bytes.size()) > size_) {
    return Discard(
        InvalidArgument(fmt::format("upload{} brings more than the {} bytes it announced",
                                    named_ ? " of " + sha256_ : "", size_)));
  }
  const absl::Status status = file_.Append(bytes);
  if (absl::IsResourceExhausted(status)) {
    return Discard(Annotate(status, "the server's disk is full; free space in its data folder"));
  }
  return status;
}

absl::Status BlobStore::Upload::CheckReceived(const std::string& part) {
  if (named_ && file_.size() != size_) {
    return OutOfRange(fmt::format("upload of {} ended at {} of {} bytes: continue there", sha256_,
                                  file_.size(), size_));
  }
  SFT_ASSIGN_OR_RETURN(const io::FileHash hash, io::HashFile(part));
  if (!named_) sha256_ = hash.sha256;
  if (hash.sha256 == sha256_) return absl::OkStatus();
  return Discard(
      InvalidArgument(fmt::format("the received bytes hash to {}, not to {}: the file changed "
                                  "during the upload; send it again",
                                  hash.sha256, sha256_)));
}

absl::Status BlobStore::Upload::Finish(
    const std::function<absl::Status(const std::string& path)>& check) {
  const std::string part = store_.PartPath(key_);
  SFT_RETURN_IF_ERROR(CheckReceived(part));
  if (check) {
    absl::Status status = check(part);
    // A busy store or a full disk says nothing about the bytes.
    if (absl::IsInvalidArgument(status)) return Discard(std::move(status));
    SFT_RETURN_IF_ERROR(status);
  }
  SFT_RETURN_IF_ERROR(file_.Sync());
  const std::string path = PathIn(store_.dir_, sha256_);
  SFT_RETURN_IF_ERROR(io::MakeDirs(path.substr(0, path.rfind('/'))));
  return io::RenameDurably(part, path);
}

}  // namespace sft::server
