#include "common/data/dataset_check.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/io/file.h"

namespace sft::data {
namespace {

using nlohmann::json;

enum class Kind { kAbsent, kNull, kText, kNumber, kBoolean, kList, kObject };

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kText:
      return "string";
    case Kind::kNumber:
      return "number";
    case Kind::kBoolean:
      return "boolean";
    case Kind::kList:
      return "array";
    case Kind::kObject:
      return "object";
    default:
      return "null";
  }
}

// Classifies a row while it is parsed. No values are kept: a row of many small ones would be thirty
// times as large in memory as in the file.
class RowForm : public nlohmann::json_sax<json> {
 public:
  // False if the row is not JSON.
  bool Read(std::string_view row) { return json::sax_parse(row.begin(), row.end(), this); }
  Kind row() const { return row_; }
  // The fault in the form of an object; empty if there is none.
  std::string Problem() const;

  bool null() override { return Value(Kind::kNull); }
  bool boolean(bool) override { return Value(Kind::kBoolean); }
  bool number_integer(number_integer_t) override { return Value(Kind::kNumber); }
  bool number_unsigned(number_unsigned_t) override { return Value(Kind::kNumber); }
  bool number_float(number_float_t, const string_t&) override { return Value(Kind::kNumber); }
  bool string(string_t&) override { return Value(Kind::kText); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(Kind::kObject); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(Kind::kList); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override;
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  struct Chat {
    Kind role = Kind::kAbsent, content = Kind::kAbsent, tool_calls = Kind::kAbsent;
  };

  bool Value(Kind kind);
  bool Open(Kind kind);
  bool Close();
  void EndMessage(bool is_object);

  int64_t depth_ = 0;  // open containers
  bool too_deep_ = false;
  Kind* next_ = nullptr;  // result of the key that was read last; null if it is irrelevant
  Kind row_ = Kind::kAbsent;
  // When a key appears twice, the last one counts.
  Kind messages_ = Kind::kAbsent, prompt_ = Kind::kAbsent, completion_ = Kind::kAbsent,
       text_ = Kind::kAbsent;
  bool in_messages_ = false, in_message_ = false;
  Chat message_;
  int64_t count_ = 0, first_bad_ = 0;  // number of messages, and index of the first bad one
};

bool RowForm::key(string_t& name) {
  next_ = nullptr;
  if (depth_ == 1) {
    next_ = name == "messages"     ? &messages_
            : name == "prompt"     ? &prompt_
            : name == "completion" ? &completion_
            : name == "text"       ? &text_
                                   : nullptr;
  } else if (depth_ == 3 && in_message_) {
    next_ = name == "role"         ? &message_.role
            : name == "content"    ? &message_.content
            : name == "tool_calls" ? &message_.tool_calls
                                   : nullptr;
  }
  return true;
}

// Called at the start of a value; the depth is that of its container.
bool RowForm::Value(Kind kind) {
  if (depth_ == 0) {
    row_ = kind;
  } else if (depth_ == 2 && in_messages_) {
    ++count_;
    message_ = {};
    in_message_ = kind == Kind::kObject;
    if (!in_message_) EndMessage(/*is_object=*/false);
  } else if (next_ != nullptr) {
    *next_ = kind;
    if (next_ == &messages_) {
      in_messages_ = kind == Kind::kList;
      count_ = first_bad_ = 0;
    }
  }
  next_ = nullptr;
  return true;
}

bool RowForm::Open(Kind kind) {
  Value(kind);
  too_deep_ |= ++depth_ > kMaxJsonDepth;
  return true;
}

bool RowForm::Close() {
  --depth_;
  if (depth_ == 2 && in_message_) EndMessage(/*is_object=*/true);
  if (depth_ == 1) in_messages_ = false;
  return true;
}

void RowForm::EndMessage(bool is_object) {
  in_message_ = false;
  // Content may be text, a list of parts as some chat formats write it, or null beside tool calls.
  const bool has_content =
      message_.content == Kind::kText || message_.content == Kind::kList ||
      ((message_.content == Kind::kAbsent || message_.content == Kind::kNull) &&
       message_.tool_calls != Kind::kAbsent);
  if (is_object && message_.role == Kind::kText && has_content) return;
  if (first_bad_ == 0) first_bad_ = count_;
}

std::string RowForm::Problem() const {
  if (too_deep_) return fmt::format("nested more than {} levels deep", kMaxJsonDepth);
  if (messages_ != Kind::kAbsent) {
    if (messages_ != Kind::kList || count_ == 0) return "\"messages\" must be a list of messages";
    if (first_bad_ == 0) return "";
    return fmt::format("message {} must be an object with \"role\" and \"content\", both text",
                       first_bad_);
  }
  if (prompt_ != Kind::kAbsent || completion_ != Kind::kAbsent) {
    if (prompt_ == completion_ && (prompt_ == Kind::kText || prompt_ == Kind::kList)) return "";
    return "\"prompt\" and \"completion\" must both be there, both text";
  }
  if (text_ == Kind::kText) return "";
  return "none of the row forms: \"messages\", \"prompt\" with \"completion\", or \"text\"";
}

class RowReader {
 public:
  absl::Status Take(std::string_view line) {
    ++line_;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == line.npos) return absl::OkStatus();
    RowForm form;
    if (!form.Read(line)) return Refuse(fmt::format("not JSON: {}", Shown(line)));
    if (form.row() != Kind::kObject) {
      return Refuse(fmt::format("a JSON {}, not an object", NameOf(form.row())));
    }
    ++found_.rows;
    const std::string problem = form.Problem();
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
    return InvalidArgument(
        fmt::format("line {}: {}; a data set is JSON Lines, one object a line", line_, problem));
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
  std::vector<char> chunk(1 << 20);
  std::string pending;  // start of a line that is not complete yet
  // Reserved at once, because growing takes three times as much. Memory that is not touched costs
  // nothing.
  pending.reserve(kMaxRowBytes + chunk.size());
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

std::string RowsProblem(const DatasetCheck& found, bool skips, int64_t taken) {
  if (found.odd_rows == 0) return "";
  if (found.odd_rows == found.rows) {
    return fmt::format("none of its {} rows can be used; {}", found.rows, found.first_odd);
  }
  if (skips || (taken > 0 && found.first_odd_row > taken)) return "";
  return fmt::format(
      "{} ({} of {} rows are like it); correct them, or leave them out with "
      "data.on_bad_rows = \"skip\"",
      found.first_odd, found.odd_rows, found.rows);
}

}  // namespace sft::data
