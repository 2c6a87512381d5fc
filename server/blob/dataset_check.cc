#include "server/blob/dataset_check.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/io/file.h"

namespace sft::server {
namespace {

using nlohmann::json;

// Text, or a list of parts as some chat formats write it, or null beside tool calls.
bool IsContent(const json& message) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) return message.contains("tool_calls");
  return content->is_string() || content->is_array();
}

std::string CheckMessages(const json& messages) {
  if (!messages.is_array() || messages.empty()) return "\"messages\" must be a list of messages";
  for (size_t i = 0; i < messages.size(); ++i) {
    const json& message = messages[i];
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string() ||
        !IsContent(message)) {
      return fmt::format("message {} must be an object with \"role\" and \"content\", both text",
                         i + 1);
    }
  }
  return "";
}

// What is wrong with the form of a row; empty: nothing.
std::string CheckForm(const json& row) {
  const auto is_text = [&](const char* key) { return row.contains(key) && row[key].is_string(); };
  const auto is_list = [&](const char* key) { return row.contains(key) && row[key].is_array(); };
  if (row.contains("messages")) return CheckMessages(row["messages"]);
  if (row.contains("prompt") || row.contains("completion")) {
    if (is_text("prompt") && is_text("completion")) return "";
    if (is_list("prompt") && is_list("completion")) return "";
    return "\"prompt\" and \"completion\" must both be there, both text";
  }
  if (is_text("text")) return "";
  return "none of the row forms: \"messages\", \"prompt\" with \"completion\", or \"text\"";
}

class RowReader {
 public:
  absl::Status Take(std::string_view line) {
    ++line_;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == line.npos) return absl::OkStatus();
    const json row = ParseJson(line);
    if (row.is_discarded()) return Refuse(fmt::format("not JSON: {}", Shown(line)));
    if (!row.is_object()) return Refuse(fmt::format("a JSON {}, not an object", row.type_name()));
    ++found_.rows;
    const std::string problem = CheckForm(row);
    if (problem.empty()) return absl::OkStatus();
    if (++found_.odd_rows == 1) {
      found_.first_odd_row = found_.rows;
      found_.first_odd = fmt::format("line {}: {}", line_, problem);
    }
    return absl::OkStatus();
  }
  absl::Status TooLong() const {
    return InvalidArgument(
        fmt::format("line {}: longer than {} MiB", line_ + 1, kMaxRowBytes >> 20));
  }
  const DatasetCheck& found() const { return found_; }

 private:
  absl::Status Refuse(const std::string& problem) const {
    return InvalidArgument(fmt::format("line {}: {}", line_, problem));
  }
  static std::string Shown(std::string_view line) {
    return ToUtf8(line.substr(0, 60)) + (line.size() > 60 ? "..." : "");
  }

  int64_t line_ = 0;
  DatasetCheck found_;
};

}  // namespace

absl::StatusOr<DatasetCheck> CheckDataset(const std::string& path) {
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(path));
  RowReader reader;
  std::string pending;  // start of a line that is not complete yet
  std::vector<char> chunk(1 << 20);
  for (int64_t offset = 0;;) {
    SFT_ASSIGN_OR_RETURN(const size_t got,
                         io::ReadAt(fd.get(), offset, chunk.data(), chunk.size(), path));
    if (got == 0) break;
    offset += static_cast<int64_t>(got);
    std::string_view rest(chunk.data(), got);
    for (size_t end; (end = rest.find('\n')) != rest.npos; rest.remove_prefix(end + 1)) {
      pending.append(rest.substr(0, end));
      SFT_RETURN_IF_ERROR(reader.Take(pending));
      pending.clear();
    }
    pending.append(rest);
    if (static_cast<int64_t>(pending.size()) > kMaxRowBytes) return reader.TooLong();
  }
  if (!pending.empty()) SFT_RETURN_IF_ERROR(reader.Take(pending));
  if (reader.found().rows == 0) return InvalidArgument("the data set is empty: it has no rows");
  return reader.found();
}

}  // namespace sft::server
