#include "server/http/form_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "server/http/http_request.h"
#include "server/http/percent.h"

namespace sft::server {
namespace {

constexpr std::string_view kLine = "\r\n";

// Removes and returns a parameter's value, quoted or not. Nullopt: a quote is not closed.
std::optional<std::string> TakeValue(std::string_view& rest) {
  std::string value;
  if (!rest.starts_with('"')) {
    const size_t end = std::min(rest.find(';'), rest.size());
    value = Trimmed(rest.substr(0, end));
    rest.remove_prefix(end);
    return value;
  }
  for (size_t i = 1; i < rest.size(); ++i) {
    if (rest[i] == '"') {
      rest.remove_prefix(i + 1);
      return value;
    }
    // Browsers write a quote as %22 and leave backslashes alone, others escape both.
    const bool escapes =
        rest[i] == '\\' && i + 1 < rest.size() && (rest[i + 1] == '"' || rest[i + 1] == '\\');
    value += rest[escapes ? ++i : i];
  }
  return std::nullopt;
}

// Calls `take` with each parameter behind a field's first word. False: they cannot be read.
bool ReadParameters(std::string_view field,
                    const std::function<void(const std::string&, std::string)>& take) {
  std::string_view rest = field.substr(std::min(field.find(';'), field.size()));
  while (!rest.empty()) {
    if (rest.front() != ';') return false;
    rest = Trimmed(rest.substr(1));
    if (rest.empty()) break;
    const size_t sign = rest.find('=');
    if (sign == rest.npos) return false;
    const std::string name = LowerCase(Trimmed(rest.substr(0, sign)));
    rest = Trimmed(rest.substr(sign + 1));
    std::optional<std::string> value = TakeValue(rest);
    if (!value.has_value()) return false;
    rest = Trimmed(rest);
    take(name, *std::move(value));
  }
  return true;
}

// "utf-8''na%C3%AFve.jsonl" (RFC 8187).
std::optional<std::string> Extended(const std::string& value) {
  const size_t first = value.find('\''), second = value.find('\'', first + 1);
  if (first == value.npos || second == value.npos) return std::nullopt;
  if (LowerCase(value.substr(0, first)) != "utf-8") return std::nullopt;
  return PercentDecoded(std::string_view(value).substr(second + 1));
}

absl::Status Broken(std::string_view what) {
  return InvalidArgument(fmt::format("the body is no multipart/form-data: {}", what));
}

}  // namespace

std::string BoundaryIn(std::string_view content_type) {
  constexpr size_t kMost = 70;
  constexpr std::string_view kSigns = "'()+_,-./:=? ";
  if (LowerCase(Trimmed(content_type.substr(0, content_type.find(';')))) != "multipart/form-data") {
    return "";
  }
  std::string boundary;
  const bool read = ReadParameters(content_type, [&](const std::string& name, std::string value) {
    if (name == "boundary") boundary = std::move(value);
  });
  const bool allowed = std::ranges::all_of(boundary, [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || kSigns.find(c) != kSigns.npos;
  });
  return read && allowed && boundary.size() <= kMost && !boundary.ends_with(' ') ? boundary : "";
}

// The first delimiter has no line before it.
FormData::FormData(std::string_view boundary, Next next)
    : delimiter_(fmt::format("\r\n--{}", boundary)), next_(std::move(next)), buffer_(kLine) {}

absl::Status FormData::Fill() {
  SFT_ASSIGN_OR_RETURN(const std::string more, next_());
  if (more.empty()) return Broken("it ends before its last boundary");
  buffer_ += more;
  return absl::OkStatus();
}

absl::StatusOr<std::string> FormData::ReadSome() {
  while (in_part_) {
    const size_t end = buffer_.find(delimiter_);
    if (end != buffer_.npos) {
      in_part_ = end > 0;
      std::string bytes = buffer_.substr(0, end);
      buffer_.erase(0, end);
      return bytes;
    }
    // What may be the beginning of a delimiter stays.
    if (buffer_.size() >= delimiter_.size()) {
      const size_t sure = buffer_.size() - delimiter_.size() + 1;
      std::string bytes = buffer_.substr(0, sure);
      buffer_.erase(0, sure);
      return bytes;
    }
    SFT_RETURN_IF_ERROR(Fill());
  }
  return std::string();
}

absl::StatusOr<std::string> FormData::ReadText(size_t most) {
  std::string text;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const std::string more, ReadSome());
    if (more.empty()) return text;
    text += more;
    if (text.size() > most) return Broken(fmt::format("a field has more than {} bytes", most));
  }
}

absl::StatusOr<std::optional<FormData::Part>> FormData::NextPart() {
  while (in_part_) SFT_RETURN_IF_ERROR(ReadSome().status());
  if (over_) return std::nullopt;
  while (buffer_.size() < delimiter_.size() + 2) SFT_RETURN_IF_ERROR(Fill());
  if (!buffer_.starts_with(delimiter_)) return Broken("it does not begin with its boundary");
  const std::string_view behind = std::string_view(buffer_).substr(delimiter_.size());
  if (behind.starts_with("--")) {
    over_ = true;
    return std::nullopt;
  }
  SFT_ASSIGN_OR_RETURN(Part part, ReadHead());
  in_part_ = true;
  return part;
}

absl::StatusOr<FormData::Part> FormData::ReadHead() {
  buffer_.erase(0, delimiter_.size());
  size_t end = 0;
  while ((end = buffer_.find("\r\n\r\n")) == buffer_.npos) {
    // All but the last byte of its end may be there.
    if (buffer_.size() > kMostHead + 3) return Broken("a part's head is too large");
    SFT_RETURN_IF_ERROR(Fill());
  }
  if (end > kMostHead) return Broken("a part's head is too large");
  if (!buffer_.starts_with(kLine)) return Broken("a boundary does not end its line");
  const std::string head = buffer_.substr(kLine.size(), end);
  buffer_.erase(0, end + 2 * kLine.size());
  Part part;
  bool named = false, read = true;
  for (size_t at = 0; at < head.size();) {
    const size_t line_end = std::min(head.find(kLine, at), head.size());
    const std::string_view line = std::string_view(head).substr(at, line_end - at);
    at = line_end + kLine.size();
    const size_t colon = line.find(':');
    if (colon == line.npos) return Broken("a part's head holds a line without a colon");
    if (LowerCase(Trimmed(line.substr(0, colon))) != "content-disposition") continue;
    read = read && ReadParameters(line, [&](const std::string& name, std::string value) {
             if (name == "name") named = true, part.name = std::move(value);
             if (name == "filename" && !part.file_name.has_value()) part.file_name = value;
             if (name == "filename*") part.file_name = Extended(value).value_or(value);
           });
  }
  if (!named || !read) return Broken("a part has no Content-Disposition with its name");
  return part;
}

}  // namespace sft::server
