#include "common/spec/template_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

namespace sft::spec {
namespace {

// Blocks that need an end tag.
constexpr std::string_view kBlocks[] = {"if",    "for",  "macro",      "call", "filter",
                                        "block", "with", "autoescape", "set",  "generation"};
constexpr size_t kMostOpen = 100;

class Scanner {
 public:
  explicit Scanner(std::string_view source) : rest_(source) {}

  std::string Run() {
    while (problem_.empty()) {
      const size_t at = rest_.find('{');
      if (at == rest_.npos || at + 1 == rest_.size()) break;
      Skip(at);
      const char kind = rest_[1];
      if (kind != '{' && kind != '%' && kind != '#') {
        Skip(1);
        continue;
      }
      Skip(2);
      if (kind == '#') {
        SkipPast("#}", "{#");
      } else {
        TakeTag(kind);
      }
    }
    if (problem_.empty() && !open_.empty()) {
      problem_ = fmt::format("{{% {} %}} in line {} of the template is never closed",
                             open_.back().name, open_.back().line);
    }
    return problem_;
  }

 private:
  struct Block {
    std::string_view name;
    int line = 0;
  };

  void Skip(size_t count) {
    line_ += static_cast<int>(std::count(rest_.begin(), rest_.begin() + count, '\n'));
    rest_.remove_prefix(count);
  }

  void NeverClosed(std::string_view what, int line) {
    problem_ = fmt::format("{} in line {} of the template is never closed", what, line);
  }

  void SkipPast(std::string_view end, std::string_view what) {
    const size_t at = rest_.find(end);
    if (at == rest_.npos) return NeverClosed(what, line_);
    Skip(at + end.size());
  }

  // Consumes a tag from behind "{{" or "{%" to behind its end; strings may contain anything.
  void TakeTag(char kind) {
    const int line = line_;
    const char end = kind == '{' ? '}' : '%';
    int braces = 0;
    size_t at = 0;
    for (; at < rest_.size(); ++at) {
      const char c = rest_[at];
      if (c == '"' || c == '\'') {
        at = EndOfString(at);
      } else if (c == '{') {
        ++braces;
      } else if (braces > 0 && c == '}') {
        --braces;
      } else if (c == end && at + 1 < rest_.size() && rest_[at + 1] == '}') {
        break;
      }
    }
    if (at >= rest_.size()) return NeverClosed(kind == '{' ? "{{" : "{%", line);
    const std::string_view inner = rest_.substr(0, at);
    Skip(at + 2);
    if (kind == '%') TakeBlock(inner, line);
  }

  // Position of the closing quote of the string that begins at `at`.
  size_t EndOfString(size_t at) const {
    const char quote = rest_[at];
    for (++at; at < rest_.size() && rest_[at] != quote; ++at) {
      if (rest_[at] == '\\') ++at;
    }
    return at;
  }

  void TakeBlock(std::string_view inner, int line) {
    const auto is_letter = [](unsigned char c) { return std::isalpha(c) != 0 || c == '_'; };
    const auto begin = std::find_if(inner.begin(), inner.end(), is_letter);
    const auto end = std::find_if_not(begin, inner.end(), is_letter);
    const std::string_view word(begin, end);
    if (word == "raw") return SkipRaw(line);
    const bool is_end = word.starts_with("end");
    const std::string_view name = is_end ? word.substr(3) : word;
    const auto known = std::find(std::begin(kBlocks), std::end(kBlocks), name);
    if (known == std::end(kBlocks)) return;
    if (!is_end) {
      // {% set x = 1 %} is complete; {% set x %} needs an end tag.
      if (name == "set" && inner.find('=') != inner.npos) return;
      open_.push_back({*known, line});
      if (open_.size() > kMostOpen) {
        problem_ = fmt::format("nests more than {} blocks, from line {} of the template on",
                               kMostOpen, line);
      }
      return;
    }
    if (!open_.empty() && open_.back().name == name) return open_.pop_back();
    problem_ = open_.empty()
                   ? fmt::format("{{% {} %}} in line {} of the template closes nothing", word, line)
                   : fmt::format(
                         "{{% {} %}} in line {} of the template stands where {{% {} %}} of "
                         "line {} is to be closed",
                         word, line, open_.back().name, open_.back().line);
  }

  // Everything up to {% endraw %} is plain text.
  void SkipRaw(int line) {
    for (size_t at = rest_.find("{%"); at != rest_.npos; at = rest_.find("{%", at + 2)) {
      size_t word = at + 2;
      while (word < rest_.size() && (rest_[word] == '-' || rest_[word] == '+')) ++word;
      word = std::min(rest_.find_first_not_of(" \t\r\n", word), rest_.size());
      if (!rest_.substr(word).starts_with("endraw")) continue;
      Skip(word);
      return SkipPast("%}", "{% endraw");
    }
    NeverClosed("{% raw %}", line);
  }

  std::string_view rest_;
  int line_ = 1;
  std::vector<Block> open_;
  std::string problem_;
};

}  // namespace

std::string TemplateProblem(std::string_view source) { return Scanner(source).Run(); }

}  // namespace sft::spec
