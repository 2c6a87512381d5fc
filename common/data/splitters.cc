#include "common/data/splitters.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "common/base/utf8.h"

namespace sft::data {
namespace {

bool IsBlank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == text.npos; }

absl::Status TooLong(int64_t line, int64_t max) {
  return InvalidArgument(fmt::format("line {}: longer than {} MiB", line, max >> 20));
}

class LineSplitter : public Splitter {
 public:
  LineSplitter(int64_t max, const TakeRow& take) : max_(max), take_(take) {
    // Reserved at once, because growing takes three times as much. Memory that is not touched costs
    // nothing.
    pending_.reserve(static_cast<size_t>(max) + (2 << 20));
  }

  absl::StatusOr<bool> Feed(std::string_view bytes) override {
    for (size_t end; (end = bytes.find('\n')) != bytes.npos; bytes.remove_prefix(end + 1)) {
      pending_.append(bytes.substr(0, end));
      SFT_ASSIGN_OR_RETURN(const bool more, Take());
      if (!more) return false;
    }
    pending_.append(bytes);
    if (static_cast<int64_t>(pending_.size()) > max_) return TooLong(line_ + 1, max_);
    return true;
  }

  absl::Status Finish() override { return Take().status(); }

 private:
  absl::StatusOr<bool> Take() {
    ++line_;
    std::string_view row = pending_;
    if (static_cast<int64_t>(row.size()) > max_) return TooLong(line_, max_);
    if (!row.empty() && row.back() == '\r') row.remove_suffix(1);
    absl::StatusOr<bool> more = true;
    if (!IsBlank(row)) more = take_(line_, row);
    pending_.clear();
    return more;
  }

  const int64_t max_;
  const TakeRow& take_;
  std::string pending_;  // start of a line that is not complete yet
  int64_t line_ = 0;
};

// Takes a file a character at a time.
class CharacterSplitter : public Splitter {
 public:
  absl::StatusOr<bool> Feed(std::string_view bytes) override {
    for (const char c : bytes) {
      SFT_ASSIGN_OR_RETURN(const bool more, Put(c));
      if (!more) return false;
      if (c == '\n') ++line_;
    }
    return true;
  }

 protected:
  // The next character; false: no more are needed.
  virtual absl::StatusOr<bool> Put(char c) = 0;

  int64_t line_ = 1;
};

// The elements of one array: the file itself, or a member of the object that it is. Only brackets
// and strings are looked at; whoever takes an element reads it.
class JsonSplitter : public CharacterSplitter {
 public:
  JsonSplitter(int64_t max, const TakeRow& take) : max_(max), take_(take) {}

  absl::Status Finish() override {
    if (depth_ > 0 || !begun_) {
      return InvalidArgument(fmt::format("line {}: the file ends inside its JSON", line_));
    }
    if (!list_.empty() || rows_depth_ == 1) return absl::OkStatus();
    return InvalidArgument(fmt::format(
        "one JSON object that holds no list of rows ({}); a data set is JSON Lines, one "
        "object a line, or a JSON array of objects",
        fmt::join(kRowLists, ", ")));
  }

 private:
  absl::StatusOr<bool> Put(char c) override {
    const bool in_row = rows_depth_ > 0 && depth_ >= rows_depth_;
    if (in_string_) {
      if (in_row) SFT_RETURN_IF_ERROR(Keep(c));
      if (!in_row && depth_ == 1 && name_.size() < kLongestName) name_ += c;
      in_string_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
      return true;
    }
    const bool opens = c == '[' || c == '{', closes = c == ']' || c == '}';
    if (in_row && depth_ == rows_depth_ && (c == ',' || closes)) {
      if (c == '}') return Stray(c);
      SFT_ASSIGN_OR_RETURN(const bool more, EndRow(c));
      if (closes) {
        --depth_;
        rows_depth_ = depth_ == 0 ? 1 : 0;
      }
      return more;
    }
    const bool blank = IsBlank({&c, 1});
    if (in_row && !(blank && row_.empty())) {
      if (row_.empty()) row_line_ = line_;
      SFT_RETURN_IF_ERROR(Keep(c));
    }
    if (!in_row && depth_ == 1 && c == '"') name_.clear();
    in_string_ = c == '"';
    if (opens) return Open(c);
    if (depth_ == 0 && !blank) return Stray(c);
    if (closes) --depth_;
    return true;
  }

  absl::Status Stray(char c) const {
    return InvalidArgument(
        fmt::format("line {}: not JSON: '{}' has no place here", line_, ToUtf8({&c, 1})));
  }

  absl::StatusOr<bool> Open(char c) {
    if (depth_ == 0) {
      if (begun_) {
        return InvalidArgument(
            fmt::format("line {}: a second JSON value follows the first; a data set is JSON Lines, "
                        "one object a line, or one JSON array of objects",
                        line_));
      }
      begun_ = true;
      if (c == '[') rows_depth_ = 1;
    } else if (depth_ == 1 && rows_depth_ == 0 && c == '[') {
      if (!name_.empty()) name_.pop_back();  // its closing quote
      if (std::ranges::find(kRowLists, name_) != std::end(kRowLists)) {
        if (!list_.empty()) {
          return InvalidArgument(fmt::format(
              "line {}: rows as \"{}\" and as \"{}\"; give a file for each", line_, list_, name_));
        }
        list_ = name_;
        rows_depth_ = 2;
      }
    }
    ++depth_;
    return true;
  }

  absl::Status Keep(char c) {
    row_ += c;
    return static_cast<int64_t>(row_.size()) > max_ ? TooLong(row_line_, max_) : absl::OkStatus();
  }

  absl::StatusOr<bool> EndRow(char c) {
    if (row_.empty()) {
      if (c != ',' && !after_comma_) return true;  // an empty list
      return InvalidArgument(
          fmt::format("line {}: not JSON: nothing stands between two commas, or "
                      "behind the last",
                      line_));
    }
    after_comma_ = c == ',';
    row_.resize(row_.find_last_not_of(" \t\r\n") + 1);
    absl::StatusOr<bool> more = take_(row_line_, row_);
    row_.clear();
    return more;
  }

  static constexpr size_t kLongestName = 64;  // names of lists are shorter

  const int64_t max_;
  const TakeRow& take_;
  int64_t row_line_ = 1;
  int depth_ = 0;
  int rows_depth_ = 0;  // depth of the array of rows; 0: not in it
  bool begun_ = false, in_string_ = false, escaped_ = false, after_comma_ = false;
  std::string name_;  // the start of the last key or text of the outer object
  std::string list_;  // the member that held the rows
  std::string row_;
};

constexpr std::string_view kListColumns[] = {"messages", "conversations", "conversation", "tools",
                                             "history",  "chosen",        "rejected",     "images",
                                             "videos",   "audios",        "segments"};
// Columns that a form can do without: an empty cell is none.
constexpr std::string_view kOptionalColumns[] = {"system", "input", "history", "tools"};

// A row repeats the names of all columns: what a table of long names and short cells may grow to.
constexpr size_t kMostColumns = 1000;
constexpr int64_t kMostGrowth = 100, kFreeGrowth = int64_t{64} << 20;

class TableSplitter : public CharacterSplitter {
 public:
  TableSplitter(char delimiter, const RowNames& names, int64_t max, const TakeRow& take)
      : delimiter_(delimiter), names_(names), max_(max), take_(take) {}

  absl::StatusOr<bool> Feed(std::string_view bytes) override {
    if (delimiter_ == '\0') {
      header_ += bytes;
      const size_t end = header_.find('\n');
      if (end == header_.npos) return SizeIsFine(header_.size());
      const std::string text = std::move(header_);
      delimiter_ = DelimiterOf(std::string_view(text).substr(0, end));
      return Feed(text);
    }
    read_ += static_cast<int64_t>(bytes.size());
    return CharacterSplitter::Feed(bytes);
  }

  absl::Status Finish() override {
    if (delimiter_ == '\0') {
      const std::string text = std::move(header_);
      delimiter_ = DelimiterOf(text);
      SFT_RETURN_IF_ERROR(Feed(text).status());
    }
    if (state_ == State::kQuoted) {
      return InvalidArgument(
          fmt::format("line {}: a quoted field that begins in this row has no end", row_line_));
    }
    return EndRow().status();
  }

 private:
  enum class State { kStart, kPlain, kQuoted, kClosed };

  static char DelimiterOf(std::string_view header) {
    char best = ',';
    for (const char candidate : {',', ';', '\t', '|'}) {
      if (std::ranges::count(header, candidate) > std::ranges::count(header, best)) {
        best = candidate;
      }
    }
    return best;
  }

  absl::StatusOr<bool> SizeIsFine(size_t size) const {
    if (static_cast<int64_t>(size) > max_) return TooLong(row_line_, max_);
    return true;
  }

  absl::StatusOr<bool> Put(char c) override {
    SFT_RETURN_IF_ERROR(SizeIsFine(++size_).status());
    if (state_ == State::kQuoted) {
      if (c == '"') {
        state_ = State::kClosed;
      } else {
        field_ += c;
      }
      return true;
    }
    if (state_ == State::kClosed && c == '"') {  // a doubled quote is one
      field_ += c;
      state_ = State::kQuoted;
      return true;
    }
    if (c == delimiter_) {
      if (fields_.size() + 1 >= kMostColumns) {
        return InvalidArgument(
            fmt::format("line {}: more than {} columns", row_line_, kMostColumns));
      }
      EndField();
      return true;
    }
    if (c == '\n') return EndRow();
    if (state_ == State::kStart && c == '"') {
      state_ = State::kQuoted;
      quoted_ = true;
      return true;
    }
    if (state_ == State::kClosed && c != '\r') {
      return InvalidArgument(fmt::format(
          "line {}: text follows the closing quote of a field; a quote inside a field is doubled",
          line_));
    }
    if (state_ == State::kClosed) return true;
    state_ = State::kPlain;
    field_ += c;
    return true;
  }

  void EndField() {
    fields_.push_back(std::move(field_));
    field_.clear();
    state_ = State::kStart;
  }

  absl::StatusOr<bool> EndRow() {
    if (state_ == State::kPlain && field_.ends_with('\r')) field_.pop_back();
    const bool blank = fields_.empty() && field_.empty() && !quoted_;
    if (!blank) EndField();
    state_ = State::kStart;
    quoted_ = false;
    const std::vector<std::string> fields = std::move(fields_);
    fields_.clear();
    field_.clear();
    size_ = 0;
    const int64_t line = row_line_;
    row_line_ = line_ + 1;
    if (blank) return true;
    return columns_.empty() ? TakeHeader(line, fields) : TakeFields(line, fields);
  }

  absl::StatusOr<bool> TakeHeader(int64_t line, const std::vector<std::string>& fields) {
    for (std::string_view name : fields) {
      const size_t first = name.find_first_not_of(" \t\r");
      name =
          first == name.npos ? "" : name.substr(first, name.find_last_not_of(" \t\r") - first + 1);
      if (!IsUtf8(name)) return NotUtf8(line);
      if (std::ranges::find(columns_, name) != columns_.end() && !name.empty()) {
        return InvalidArgument(fmt::format("line {}: the header has \"{}\" twice", line, name));
      }
      columns_.emplace_back(name);
    }
    return true;
  }

  static absl::Status NotUtf8(int64_t line) {
    return InvalidArgument(fmt::format("line {}: not UTF-8; save the file as UTF-8", line));
  }

  absl::StatusOr<bool> TakeFields(int64_t line, const std::vector<std::string>& fields) {
    if (fields.size() != columns_.size()) {
      return InvalidArgument(fmt::format(
          "line {}: {} field{}, but the header has {}; a field that holds the delimiter "
          "or a line end stands in quotes",
          line, fields.size(), fields.size() == 1 ? "" : "s", columns_.size()));
    }
    nlohmann::ordered_json row = nlohmann::ordered_json::object();
    for (size_t i = 0; i < fields.size(); ++i) {
      if (columns_[i].empty()) continue;  // the numbers that some tools put before rows
      if (!IsUtf8(fields[i])) return NotUtf8(line);
      const std::string_view column = names_.Column(columns_[i]);
      const bool list = std::ranges::find(kListColumns, column) != std::end(kListColumns);
      if (fields[i].empty() &&
          std::ranges::find(kOptionalColumns, column) != std::end(kOptionalColumns)) {
        continue;
      }
      row[columns_[i]] = fields[i];
      if (!list || !fields[i].starts_with('[')) continue;
      nlohmann::ordered_json parsed = ParseOrderedJson(fields[i]);
      if (!parsed.is_discarded()) row[columns_[i]] = std::move(parsed);
    }
    const std::string text = DumpJson(row);
    made_ += static_cast<int64_t>(text.size());
    if (made_ > kMostGrowth * read_ + kFreeGrowth) {
      return InvalidArgument(
          fmt::format("line {}: with the names of their columns the rows are more than {} times as "
                      "long as the file; give the columns shorter names",
                      line, kMostGrowth));
    }
    return take_(line, text);
  }

  char delimiter_;
  const RowNames& names_;
  const int64_t max_;
  const TakeRow& take_;
  std::string header_;  // until the delimiter is known
  State state_ = State::kStart;
  bool quoted_ = false;          // the row has a quoted field
  size_t size_ = 0;              // bytes of the row
  int64_t read_ = 0, made_ = 0;  // bytes of the file, and of rows
  std::string field_;
  std::vector<std::string> fields_, columns_;
  int64_t row_line_ = 1;
};

class TextSplitter : public Splitter {
 public:
  TextSplitter(bool asks, int64_t max, const TakeRow& take) : asks_(asks), max_(max), take_(take) {}

  absl::StatusOr<bool> Feed(std::string_view bytes) override {
    text_ += bytes;
    if (static_cast<int64_t>(text_.size()) <= max_) return true;
    return InvalidArgument(fmt::format(
        "a text of more than {} MiB; a text file is one document: cut it into documents and write "
        "them as rows of \"text\"",
        max_ >> 20));
  }

  absl::Status Finish() override {
    if (IsBlank(text_)) return absl::OkStatus();
    if (const size_t at = FindInvalidUtf8(text_); at != text_.npos) {
      return InvalidArgument(
          fmt::format("line {}: not UTF-8; save the file as UTF-8",
                      1 + std::ranges::count(std::string_view(text_).substr(0, at), '\n')));
    }
    if (asks_ && BeginsWithRow()) {
      return InvalidArgument(
          "its first line is a JSON object, and a .txt file is one document; give it the ending "
          ".jsonl if its lines are rows, or .md if it is a text");
    }
    return take_(1, DumpJson(nlohmann::ordered_json{{"text", text_}})).status();
  }

 private:
  bool BeginsWithRow() const {
    const size_t first = text_.find_first_not_of(" \t\r\n");
    const std::string_view line =
        std::string_view(text_).substr(first, text_.find('\n', first) - first);
    return line.starts_with('{') && ParseOrderedJson(line).is_object();
  }

  const bool asks_;  // refuses what looks like rows
  const int64_t max_;
  const TakeRow& take_;
  std::string text_;
};

}  // namespace

std::unique_ptr<Splitter> MakeLineSplitter(int64_t max, const TakeRow& take) {
  return std::make_unique<LineSplitter>(max, take);
}

std::unique_ptr<Splitter> MakeJsonSplitter(int64_t max, const TakeRow& take) {
  return std::make_unique<JsonSplitter>(max, take);
}

std::unique_ptr<Splitter> MakeTableSplitter(char delimiter, const RowNames& names, int64_t max,
                                            const TakeRow& take) {
  return std::make_unique<TableSplitter>(delimiter, names, max, take);
}

std::unique_ptr<Splitter> MakeTextSplitter(bool asks, int64_t max, const TakeRow& take) {
  return std::make_unique<TextSplitter>(asks, max, take);
}

}  // namespace sft::data
