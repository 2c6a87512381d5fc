#include "worker/rank/prompt_rows.h"

#include <fmt/format.h>

#include <sstream>
#include <utility>

#include "common/base/utf8.h"
#include "common/io/file.h"
#include "worker/engine/base/error.h"

namespace sft::rank {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 30;

absl::StatusOr<data::PromptRow> RowOf(const std::string& line, size_t first) {
  if (!IsUtf8(line)) return InvalidArgument("the line is not UTF-8");
  return line[first] == '{' ? data::ReadPromptRow(line) : data::UserPrompt(line);
}

}  // namespace

std::vector<data::PromptRow> ReadPromptFile(const std::string& path) {
  const auto text = io::ReadFile(path, kMostBytes);
  if (!text.ok()) throw engine::UserError(std::string(Message(text.status())), "no_prompts");
  std::vector<data::PromptRow> rows;
  std::istringstream lines(*text);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (number == 1 && line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);
    if (line.ends_with('\r')) line.pop_back();
    const size_t first = line.find_first_not_of(" \t");
    if (first == std::string::npos) continue;
    absl::StatusOr<data::PromptRow> row = RowOf(line, first);
    if (!row.ok()) {
      throw engine::UserError(fmt::format("{}:{}: {}", path, number, Message(row.status())),
                              "bad_prompt",
                              "Write one prompt a line: text, or JSON with messages or prompt.");
    }
    row->line = number;
    rows.push_back(*std::move(row));
  }
  if (rows.empty()) {
    throw engine::UserError(path + " holds no prompt", "no_prompts", "Write one prompt a line.");
  }
  return rows;
}

std::string PlaceOf(const std::string& file, const data::PromptRow& row) {
  return fmt::format("{}:{}", file, row.line);
}

std::vector<int32_t> EncodeRow(const engine::ChatTokenizer& tokenizer, const data::PromptRow& row) {
  if (!row.messages.empty()) {
    std::vector<engine::ChatMessage> messages;
    for (const data::PromptMessage& each : row.messages) {
      messages.push_back({.role = each.role, .content = each.content});
    }
    return tokenizer.EncodePrompt(messages);
  }
  std::vector<int32_t> tokens;
  if (tokenizer.adds_bos()) tokens.push_back(*tokenizer.bos_id());
  const engine::Encoding encoding = tokenizer.tokenizer().EncodeAsPlainText(row.text);
  tokens.insert(tokens.end(), encoding.ids.begin(), encoding.ids.end());
  return tokens;
}

}  // namespace sft::rank
