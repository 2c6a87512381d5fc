#include "common/data/row_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/columnar/table.h"
#include "common/data/byte_reader.h"
#include "common/data/splitters.h"

namespace sft::data {
namespace {

constexpr size_t kChunkBytes = 1 << 20;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

std::string LowerEnding(std::string_view& name) {
  const size_t dot = name.find_last_of("./");
  if (dot == name.npos || name[dot] == '/') return "";
  std::string ending(name.substr(dot));
  std::ranges::transform(ending, ending.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  name = name.substr(0, dot);
  return ending;
}

// The ending that says how rows stand in the file: that before one of a packed file.
std::string EndingOf(std::string_view name) {
  std::string ending = LowerEnding(name);
  for (const std::string_view packed : {".gz", ".zst", ".bz2", ".xz"}) {
    if (ending == packed) {
      ending = LowerEnding(name);
      break;
    }
  }
  return ending;
}

size_t SkipBlanks(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(" \t\r\n", at), text.size());
}

// Whether the object that begins the file goes on over several lines, as printers lay it out, or
// begins with a list of rows.
bool HoldsRows(std::string_view head) {
  const std::string_view line = head.substr(0, std::min(head.find('\n'), head.size()));
  const size_t last = line.find_last_not_of(" \t\r");
  if (line.size() < head.size() && (line[last] == '{' || line[last] == '[' || line[last] == ',')) {
    return true;
  }
  size_t at = SkipBlanks(head, 1);
  for (const std::string_view name : kRowLists) {
    const std::string quoted = fmt::format("\"{}\"", name);
    if (!head.substr(at).starts_with(quoted)) continue;
    at = SkipBlanks(head, at + quoted.size());
    if (at == head.size() || head[at] != ':') return false;
    at = SkipBlanks(head, at + 1);
    if (at == head.size() || head[at] != '[') return false;
    at = SkipBlanks(head, at + 1);
    return at < head.size() && head[at] == '{';
  }
  return false;
}

// What the first bytes of a file say that it is, when no rows are read from such files.
absl::Status RefuseForeign(std::string_view head) {
  using namespace std::string_view_literals;
  if (head.starts_with("\xff\xfe"sv) || head.starts_with("\xfe\xff"sv)) {
    return InvalidArgument("the text is UTF-16; save the file as UTF-8");
  }
  if (columnar::IsTable(head)) {
    return InvalidArgument(
        "a Parquet or Arrow file in a packed one; unpack it: it is packed in itself");
  }
  if (head.starts_with("version https://git-lfs.github.com/"sv)) {
    return InvalidArgument(
        "a pointer of Git LFS in place of the file; fetch the file itself with `git lfs pull`");
  }
  if (head.starts_with("PK\x03\x04"sv) || (head.size() > 262 && head.substr(257, 5) == "ustar"sv)) {
    return InvalidArgument("an archive; unpack it and give the file with the rows");
  }
  return absl::OkStatus();
}

bool IsTableEnding(std::string_view ending) {
  return ending == ".parquet" || ending == ".arrow" || ending == ".feather";
}

// Why a file is not the table that its name says.
absl::Status RefuseTable(std::string_view ending, std::string_view head) {
  if (head.starts_with("PARE")) {
    return InvalidArgument("the Parquet file is encrypted, which is not read; write it without");
  }
  SFT_RETURN_IF_ERROR(RefuseForeign(head));
  const bool parquet = ending == ".parquet";
  return InvalidArgument(fmt::format(
      "not {} file, though its name says so: it does not begin as one; copy or download it again, "
      "or give it the ending of what it is",
      parquet ? "a Parquet" : "an Arrow"));
}

std::unique_ptr<Splitter> MakeSplitter(Container container, std::string_view name,
                                       const ReadOptions& options, const TakeRow& take) {
  static const RowNames kUsual;
  const RowNames& names = options.names != nullptr ? *options.names : kUsual;
  switch (container) {
    case Container::kJson:
      return MakeJsonSplitter(options.max_row_bytes, take);
    case Container::kCsv:
    case Container::kTsv:
      return MakeTableSplitter(container == Container::kTsv ? '\t' : '\0', names,
                               options.max_row_bytes, take);
    case Container::kText:
      return MakeTextSplitter(EndingOf(name) == ".txt", options.max_row_bytes, take);
    case Container::kLines:
    case Container::kTable:
      break;
  }
  return MakeLineSplitter(options.max_row_bytes, take);
}

}  // namespace

std::string_view PlaceWord(Container container) {
  return container == Container::kTable ? "row" : "line";
}

Container ContainerOf(std::string_view name, std::string_view head) {
  if (columnar::IsTable(head)) return Container::kTable;
  const std::string ending = EndingOf(name);
  if (IsTableEnding(ending)) return Container::kTable;
  if (ending == ".csv") return Container::kCsv;
  if (ending == ".tsv") return Container::kTsv;
  if (ending == ".txt" || ending == ".md") return Container::kText;
  if (head.starts_with(kByteOrderMark)) head.remove_prefix(kByteOrderMark.size());
  const size_t first = SkipBlanks(head, 0);
  if (first == head.size()) return Container::kLines;
  if (head[first] == '[') return Container::kJson;
  return head[first] == '{' && HoldsRows(head.substr(first)) ? Container::kJson : Container::kLines;
}

absl::StatusOr<bool> IsTableFile(const std::string& path) {
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(path));
  char magic[64];
  SFT_ASSIGN_OR_RETURN(const size_t begun, io::ReadAt(fd.get(), 0, magic, sizeof(magic), path));
  return columnar::IsTable({magic, begun});
}

absl::Status ReadRows(const std::string& path, std::string_view name, const ReadOptions& options,
                      const TakeRow& take) {
  SFT_ASSIGN_OR_RETURN(io::UniqueFd fd, io::OpenForRead(path));
  return ReadRows(std::move(fd), name, options, take);
}

absl::Status ReadRows(io::UniqueFd fd, std::string_view name, const ReadOptions& options,
                      const TakeRow& take) {
  const std::string path(name.empty() ? "the file" : name);
  char magic[64];
  SFT_ASSIGN_OR_RETURN(const size_t begun, io::ReadAt(fd.get(), 0, magic, sizeof(magic), path));
  if (columnar::IsTable({magic, begun})) {
    if (options.kind != nullptr) *options.kind = {Container::kTable, false};
    return columnar::ReadTable(fd.get(), path, {.max_row_bytes = options.max_row_bytes}, take);
  }
  std::string_view rest = name;
  if (const std::string ending = LowerEnding(rest); IsTableEnding(ending)) {
    return RefuseTable(ending, {magic, begun});
  }
  SFT_ASSIGN_OR_RETURN(const std::unique_ptr<ByteReader> file,
                       ByteReader::Open(std::move(fd), path));
  std::vector<char> chunk(kChunkBytes);
  std::unique_ptr<Splitter> splitter;
  for (;;) {
    SFT_ASSIGN_OR_RETURN(const size_t got, file->Read(chunk.data(), chunk.size()));
    std::string_view bytes(chunk.data(), got);
    if (splitter == nullptr) {
      SFT_RETURN_IF_ERROR(RefuseForeign(bytes));
      const Container container = ContainerOf(name, bytes);
      if (options.kind != nullptr) {
        *options.kind = {container, CompressionOf({magic, begun}) != Compression::kNone};
      }
      splitter = MakeSplitter(container, name, options, take);
      if (bytes.starts_with(kByteOrderMark)) bytes.remove_prefix(kByteOrderMark.size());
    }
    if (got == 0) return splitter->Finish();
    SFT_ASSIGN_OR_RETURN(const bool more, splitter->Feed(bytes));
    if (!more) return absl::OkStatus();
  }
}

}  // namespace sft::data
