#include "common/data/front_matter.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace sft::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostDepth = 20, kMostBrackets = 16;

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  return first == text.npos ? std::string_view()
                            : text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

struct YamlLine {
  size_t indent = 0;
  std::string_view text;
  int number = 0;
};

// Without what stands behind a " #".
std::string_view WithoutComment(std::string_view text) {
  char quote = '\0';
  for (size_t i = 0; i < text.size(); ++i) {
    if (quote != '\0') {
      if (text[i] == quote) quote = '\0';
    } else if (text[i] == '"' || text[i] == '\'') {
      quote = text[i];
    } else if (text[i] == '#' && (i == 0 || text[i - 1] == ' ')) {
      return text.substr(0, i);
    }
  }
  return text;
}

// False: lists within lists, too deep.
bool ReadWord(std::string_view text, int depth, Json& word) {
  if (depth > kMostBrackets) return false;
  text = Trimmed(text);
  const bool quoted = text.size() >= 2 && (text.front() == '"' || text.front() == '\'') &&
                      text.back() == text.front();
  if (quoted) text = text.substr(1, text.size() - 2);
  if (quoted || text.size() < 2 || !text.starts_with('[') || !text.ends_with(']')) {
    word = std::string(text);
    return true;
  }
  word = Json::array();
  for (text = text.substr(1, text.size() - 2); !Trimmed(text).empty();) {
    const size_t comma = std::min(text.find(','), text.size());
    word.emplace_back();
    if (!ReadWord(text.substr(0, comma), depth + 1, word.back())) return false;
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return true;
}

class YamlReader {
 public:
  explicit YamlReader(std::vector<YamlLine> lines) : lines_(std::move(lines)) {}

  absl::StatusOr<Json> Run() {
    if (lines_.empty()) return Json::object();
    SFT_ASSIGN_OR_RETURN(Json all, Block(lines_[0].indent, 0));
    if (at_ < lines_.size()) return Wrong();
    return all;
  }

 private:
  absl::Status Wrong() const {
    return InvalidArgument(fmt::format("README.md, line {}: not read as a data set's front matter",
                                       lines_[std::min(at_, lines_.size() - 1)].number));
  }

  static bool IsItem(std::string_view text) { return text == "-" || text.starts_with("- "); }

  // Where the ':' of "key: value" or "key:" stands; npos: it is none.
  static size_t Colon(std::string_view text) {
    if (text.starts_with('"') || text.starts_with('\'')) {
      const size_t end = text.find(text.front(), 1);
      return end != text.npos && end + 1 < text.size() && text[end + 1] == ':' ? end + 1
                                                                               : text.npos;
    }
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == ':' && (i + 1 == text.size() || text[i + 1] == ' ')) return i;
    }
    return text.npos;
  }

  // A word that begins in this line and goes on over the lines below that stand further right.
  absl::StatusOr<Json> Word(std::string_view first, size_t indent) {
    std::string text(first);
    const bool any_text = first.find_first_of("\"'[") == 0;
    const size_t begin = at_;
    for (++at_; at_ < lines_.size() && lines_[at_].indent > indent; ++at_) {
      if (!any_text && Colon(lines_[at_].text) != std::string_view::npos) return Wrong();
      text.append(" ").append(lines_[at_].text);
    }
    Json word;
    if (ReadWord(text, 0, word)) return word;
    at_ = begin;
    return Wrong();
  }

  absl::StatusOr<Json> Block(size_t indent, int depth) {
    if (depth > kMostDepth) return Wrong();
    return IsItem(lines_[at_].text) ? List(indent, depth) : Mapping(indent, depth);
  }

  absl::StatusOr<Json> List(size_t indent, int depth) {
    Json list = Json::array();
    while (at_ < lines_.size() && lines_[at_].indent == indent && IsItem(lines_[at_].text)) {
      YamlLine& line = lines_[at_];
      const std::string_view rest = line.text.substr(1);
      const size_t first = rest.find_first_not_of(' ');
      if (first == rest.npos) {  // the item is below
        ++at_;
        if (at_ == lines_.size() || lines_[at_].indent <= indent) return Wrong();
        SFT_ASSIGN_OR_RETURN(Json item, Block(lines_[at_].indent, depth + 1));
        list.push_back(std::move(item));
        continue;
      }
      if (Colon(rest.substr(first)) == rest.npos && !IsItem(rest.substr(first))) {
        SFT_ASSIGN_OR_RETURN(Json item, Word(Trimmed(rest), indent));
        list.push_back(std::move(item));
        continue;
      }
      // A mapping that begins in the line of its dash.
      line.indent += 1 + first;
      line.text = rest.substr(first);
      SFT_ASSIGN_OR_RETURN(Json item, Block(line.indent, depth + 1));
      list.push_back(std::move(item));
    }
    return list;
  }

  absl::StatusOr<Json> Mapping(size_t indent, int depth) {
    Json mapping = Json::object();
    while (at_ < lines_.size() && lines_[at_].indent == indent && !IsItem(lines_[at_].text)) {
      const std::string_view text = lines_[at_].text;
      const size_t colon = Colon(text);
      if (colon == text.npos) return Wrong();
      Json name;
      if (!ReadWord(text.substr(0, colon), 0, name) || !name.is_string()) return Wrong();
      const auto key = name.get<std::string>();
      const std::string_view value = Trimmed(text.substr(colon + 1));
      if (!value.empty() && value.front() != '|' && value.front() != '>') {
        SFT_ASSIGN_OR_RETURN(mapping[key], Word(value, indent));
        continue;
      }
      ++at_;
      if (!value.empty()) {
        while (at_ < lines_.size() && lines_[at_].indent > indent) ++at_;  // prose
        mapping[key] = "";
        continue;
      }
      // Lists may stand as far left as the key that they belong to.
      const bool below =
          at_ < lines_.size() && (lines_[at_].indent > indent ||
                                  (lines_[at_].indent == indent && IsItem(lines_[at_].text)));
      if (!below) {
        mapping[key] = "";
        continue;
      }
      const std::string_view next = lines_[at_].text;
      if (!IsItem(next) && Colon(next) == next.npos) {
        SFT_ASSIGN_OR_RETURN(mapping[key], Word(next, indent));
        continue;
      }
      SFT_ASSIGN_OR_RETURN(mapping[key], Block(lines_[at_].indent, depth + 1));
    }
    return mapping;
  }

  std::vector<YamlLine> lines_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<nlohmann::ordered_json> ParseFrontMatter(std::string_view text) {
  std::vector<YamlLine> lines;
  bool inside = false;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!inside) {
      if (Trimmed(line) != "---") return Json::object();
      inside = true;
      continue;
    }
    if (Trimmed(line) == "---" || Trimmed(line) == "...") return YamlReader(lines).Run();
    line = WithoutComment(line);
    if (Trimmed(line).empty()) continue;
    lines.push_back({line.find_first_not_of(' '), Trimmed(line), number});
  }
  return Json::object();
}

}  // namespace sft::data
