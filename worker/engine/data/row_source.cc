#include "worker/engine/data/row_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/ids.h"
#include "common/data/byte_reader.h"
#include "common/data/row_reader.h"
#include "common/io/file.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/text_documents.h"

namespace sft::engine {
namespace {

constexpr size_t kFlushBytes = 1 << 20;

// The lines that hold something, at most `max` of them (0: all). A byte order mark is not content.
std::vector<Line> SplitLines(std::string_view bytes, int64_t max) {
  if (bytes.starts_with("\xef\xbb\xbf")) bytes.remove_prefix(3);
  std::vector<Line> lines;
  for (int64_t number = 1; !bytes.empty(); ++number) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    const std::string_view text = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (max > 0 && static_cast<int64_t>(lines.size()) == max) break;
    lines.push_back({number, text});
  }
  return lines;
}

// A part of the row reader's contract: the container of a file that is mapped as it is.
bool IsPlainLines(const PrepareOptions& options, std::string_view bytes) {
  if (options.text_documents != spec::TextDocuments::kWhole) return false;
  const std::string_view head = bytes.substr(0, 1 << 20);
  return data::CompressionOf(head) == data::Compression::kNone &&
         data::ContainerOf(options.Name(), head) == data::Container::kLines;
}

// A new file at the path, of which only the descriptor is left: it goes with the process.
io::UniqueFd NamelessFile(const std::filesystem::path& path) {
  io::UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid() || unlink(path.c_str()) != 0) {
    ThrowIfNodeError(ErrnoStatus(path.string(), errno));
  }
  return fd;
}

}  // namespace

RowSource::RowSource(const MappedFile& file, const PrepareOptions& options) {
  if (IsPlainLines(options, file.bytes())) {
    bytes_ = file.bytes();
    lines_ = SplitLines(bytes_, options.max_examples);
  } else {
    Unpack(file, options);
  }
  if (lines_.empty()) {
    throw UserError(fmt::format("{}: the file has no rows; write one JSON object on each line",
                                options.Name()));
  }
}

void RowSource::Unpack(const MappedFile& file, const PrepareOptions& options) {
  struct Place {
    int64_t line;
    size_t begin, size;
  };
  std::vector<Place> places;
  ThrowIfNodeError(io::MakeDirs(options.cache_dir.string()));
  const std::filesystem::path path = options.cache_dir / (RandomId("unpacked") + ".tmp");
  io::UniqueFd fd = NamelessFile(path);
  size_t size = 0;
  std::string pending;
  absl::Status written;
  const auto flush = [&] {
    written = io::WriteAll(fd.get(), pending, path.string());
    pending.clear();
    return written;
  };
  const data::TakeRow keep = [&](int64_t line, std::string_view row) -> absl::StatusOr<bool> {
    places.push_back({line, size, row.size()});
    pending += row;
    size += row.size();
    if (pending.size() > kFlushBytes) SFT_RETURN_IF_ERROR(flush());
    return options.max_examples == 0 || static_cast<int64_t>(places.size()) < options.max_examples;
  };
  data::FileKind kind;
  const data::TakeRow take = [&](int64_t line, std::string_view row) -> absl::StatusOr<bool> {
    const std::vector<RowPart> parts = options.text_documents == spec::TextDocuments::kBlankLines
                                           ? PartsOfRow(row, options.names, options.learns)
                                           : std::vector<RowPart>();
    if (parts.empty()) return keep(line, row);
    for (const RowPart& part : parts) {
      // Lines within a row of JSON are none of the file's.
      const bool own = kind.container == data::Container::kText;
      SFT_ASSIGN_OR_RETURN(const bool more, keep(own ? line + part.lines_before : line, part.row));
      if (!more) return false;
    }
    return true;
  };
  absl::Status read = data::ReadRows(file.Descriptor(), options.Name(),
                                     {.names = &options.names, .kind = &kind}, take);
  if (read.ok()) read = flush();
  ThrowIfNodeError(written);
  ThrowIfError(Annotate(read, options.Name()));
  unpacked_.emplace(MappedFile::Map(std::move(fd), path));
  bytes_ = unpacked_->bytes();
  lines_.reserve(places.size());
  for (const Place& place : places) {
    lines_.push_back({place.line, bytes_.substr(place.begin, place.size)});
  }
}

}  // namespace sft::engine
