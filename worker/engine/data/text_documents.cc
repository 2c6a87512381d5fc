#include "worker/engine/data/text_documents.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json.h"

namespace sft::engine {
namespace {

bool IsBlankLine(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

// The file's own name of the column with the text.
std::string TextColumn(const data::RowNames& names) {
  for (const auto& [theirs, ours] : names.columns) {
    if (ours == "text") return theirs;
  }
  return "text";
}

}  // namespace

std::vector<TextPart> PartsOfText(std::string_view text) {
  std::vector<TextPart> parts;
  bool open = false;
  size_t begin = 0;
  int64_t number = 0;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (IsBlankLine(line)) {
      open = false;
    } else {
      if (!open) {
        begin = at;
        parts.push_back({number, {}});
      }
      open = true;
      const size_t last = line.ends_with('\r') ? end - 1 : end;
      parts.back().text = text.substr(begin, last - begin);
    }
    at = end + 1;
  }
  return parts;
}

std::vector<RowPart> PartsOfRow(std::string_view row, const data::RowNames& names,
                                data::Learns learns) {
  if (data::ShapeOf(row, names, learns).form != data::Form::kText) return {};
  nlohmann::ordered_json object = ParseOrderedJson(row);
  const auto found = object.is_object() ? object.find(TextColumn(names)) : object.end();
  if (found == object.end() || !found->is_string()) return {};
  const auto text = found->get<std::string>();
  std::vector<RowPart> parts;
  for (const TextPart& part : PartsOfText(text)) {
    *found = std::string(part.text);
    parts.push_back({part.lines_before, DumpJson(object)});
  }
  return parts;
}

}  // namespace sft::engine
