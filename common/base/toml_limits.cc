#include "common/base/toml_limits.h"

#include <fmt/format.h>

#include <algorithm>

namespace sft {
namespace {

// Scans a text for strings, comments, brackets and the places where a name may stand; it knows
// nothing else of TOML.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::optional<TomlExcess> Run() {
    while (at_ < text_.size() && message_.empty()) Step();
    if (message_.empty()) return std::nullopt;
    return TomlExcess{line_, message_};
  }

 private:
  void Step() {
    const char c = text_[at_];
    if (c == '"' || c == '\'') return SkipString(c);
    if (c == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
      return;
    }
    ++at_;
    switch (c) {
      case '\n':
        ++line_;
        if (open_ == 0) header_ = false;
        return BeginName();
      case '.':
        return TakeDot();
      case '=':
        if (open_ == 0) header_ = false;
        TakeName();
        return BeginName();
      case '[':
      case '{':
        return Open(c);
      case ']':
      case '}':
        return Close();
      case ',':
        return BeginName();
      default:
        return;
    }
  }

  void BeginName() {
    name_at_ = at_;
    dots_ = 0;
  }

  void TakeDot() {
    if (++dots_ >= kMaxTomlParts) {
      message_ = fmt::format("has a key of more than {} parts", kMaxTomlParts);
    }
    CountName();
  }

  void TakeName() {
    // Not counting the character that ends it.
    if (at_ - 1 - name_at_ > kMaxTomlNameBytes) {
      message_ = fmt::format("has a name of more than {} bytes", kMaxTomlNameBytes);
    }
    CountName();
  }

  void CountName() {
    if (++names_ > kMaxTomlNames && message_.empty()) {
      message_ = fmt::format("has more than {} names of keys and tables", kMaxTomlNames);
    }
  }

  void Open(char c) {
    // A bracket at the start of a statement begins a header; a second one makes it a list header.
    const bool begins =
        open_ == 0 &&
        text_.substr(name_at_, at_ - 1 - name_at_).find_first_not_of(" \t\r\xef\xbb\xbf") ==
            std::string_view::npos;
    if (c == '[' && begins && !in_value()) header_ = true;
    if (++open_ > kMaxTomlBrackets) {
      message_ = fmt::format("nests more than {} brackets", kMaxTomlBrackets);
    }
    BeginName();
  }

  void Close() {
    if (header_) {
      TakeName();
      header_ = false;
    }
    open_ = std::max(open_ - 1, 0);
    BeginName();
  }

  bool in_value() const { return name_at_ > 0 && text_[name_at_ - 1] == '='; }

  // Skips a string: one line or, with three quotes, several lines; up to two more quotes at its end
  // then belong to it.
  void SkipString(char quote) {
    const bool many = text_.substr(at_, 3) == std::string(3, quote);
    at_ += many ? 3 : 1;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') {
        if (!many) return;  // not valid TOML
        ++line_;
      } else if (c == '\\' && quote == '"') {
        ++at_;
        if (at_ < text_.size() && text_[at_] == '\n') ++line_;
      } else if (c == quote && (!many || text_.substr(at_, 3) == std::string(3, quote))) {
        at_ += many ? 3 : 1;
        for (int more = 0; many && more < 2 && at_ < text_.size() && text_[at_] == quote; ++more) {
          ++at_;
        }
        return;
      }
    }
    at_ = text_.size();
  }

  const std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  std::string message_;
  size_t name_at_ = 0;  // position after the sign that may be followed by a name
  int dots_ = 0;        // dots since then
  int names_ = 0;
  int open_ = 0;         // open brackets
  bool header_ = false;  // inside [a.b]
};

}  // namespace

std::optional<TomlExcess> FindTomlExcess(std::string_view text) { return Scanner(text).Run(); }

}  // namespace sft
