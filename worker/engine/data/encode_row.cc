#include "worker/engine/data/encode_row.h"

#include <fmt/format.h>

#include <algorithm>

#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

using Json = nlohmann::ordered_json;

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// Calls visit(text, path) for every string in `json`, keys of objects included.
template <typename Visit>
void ForEachString(const Json& json, const std::string& path, const Visit& visit) {
  if (json.is_string()) {
    visit(json.get_ref<const std::string&>(), path);
  } else if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      visit(key, path);
      ForEachString(value, fmt::format("{}.{}", path, key), visit);
    }
  } else if (json.is_array()) {
    for (size_t i = 0; i < json.size(); ++i) {
      ForEachString(json[i], fmt::format("{}[{}]", path, i), visit);
    }
  }
}

uint8_t BreakBefore(std::string_view text, size_t at) {
  text = text.substr(0, at);
  if (text.ends_with("\n\n") || text.ends_with("\n\r\n")) return EncodedRow::kParagraph;
  return text.ends_with('\n') ? EncodedRow::kLine : EncodedRow::kNone;
}

}  // namespace

RowEncoder::RowEncoder(const ChatTokenizer& tokenizer, spec::LossOn loss_on, int sequence_length)
    : tokenizer_(tokenizer), loss_on_(loss_on), sequence_length_(sequence_length) {
  if (tokenizer.chat_template() != nullptr) turns_.emplace(*tokenizer.chat_template());
  for (const AddedToken& token : tokenizer.tokenizer().added_tokens()) {
    if (token.special) special_ids_.push_back(token.id);
    if (token.id == tokenizer.eos_id()) eos_text_ = token.text;
  }
}

EncodedRow RowEncoder::Encode(const Row& row) const {
  EncodedRow encoded = std::visit([this](const auto& form) { return EncodeForm(form); }, row);
  if (!encoded.loss.empty()) encoded.loss[0] = 0;
  if (std::ranges::find(encoded.loss, 1) == encoded.loss.end()) {
    throw RowError(RowProblem::kNoAnswer, "no token of it carries loss: the answer is empty");
  }
  return encoded;
}

bool RowEncoder::StartsWithBos(const EncodedRow& row) const {
  return tokenizer_.bos_id() && !row.tokens.empty() && row.tokens[0] == *tokenizer_.bos_id();
}

void RowEncoder::RefuseControlToken(std::string_view text, std::string_view where,
                                    bool author_text) const {
  const AddedToken* token = tokenizer_.FindControlToken(text, author_text);
  if (token == nullptr) return;
  throw RowError(
      RowProblem::kControlToken,
      fmt::format("{} holds \"{}\", which the model would read as a control token; remove "
                  "or rewrite it",
                  where, token->text));
}

void RowEncoder::RefuseControlTokens(const ConversationRow& row) const {
  for (size_t i = 0; i < row.messages.size(); ++i) {
    const Json& role = row.messages[i].at("role");
    const bool author_text = role != "user" && role != "tool";
    ForEachString(row.messages[i], fmt::format("message {}", i),
                  [&](const std::string& text, const std::string& where) {
                    RefuseControlToken(text, where, author_text);
                  });
  }
  const auto refuse = [this](const std::string& text, const std::string& where) {
    RefuseControlToken(text, where, /*author_text=*/true);
  };
  ForEachString(row.tools, "tools", refuse);
  ForEachString(row.variables, "chat_template_kwargs", refuse);
}

// One past the last byte that carries loss.
size_t RowEncoder::EndOfTurn(const Encoding& encoding, std::string_view text,
                             const Turn& turn) const {
  const auto is_special = [this, &encoding](size_t i) {
    return std::ranges::binary_search(special_ids_, encoding.ids[i]);
  };
  const auto first = static_cast<size_t>(std::ranges::lower_bound(encoding.starts, turn.begin) -
                                         encoding.starts.begin());
  if (turn.text_end > 0) {
    // The first special token after the text, if only blanks stand between.
    for (size_t i = first; i < encoding.ids.size() && encoding.starts[i] < turn.limit; ++i) {
      if (encoding.starts[i] < turn.text_end || !is_special(i)) continue;
      const bool adjacent = IsBlank(text.substr(turn.text_end, encoding.starts[i] - turn.text_end));
      return adjacent ? encoding.ends[i] : turn.text_end;
    }
    return turn.text_end;
  }
  // The last special token before the limit, if only blanks follow it.
  for (size_t i = encoding.ids.size(); i-- > first;) {
    if (encoding.starts[i] >= turn.limit || !is_special(i)) continue;
    const bool last = IsBlank(text.substr(encoding.ends[i], turn.limit - encoding.ends[i]));
    return last ? encoding.ends[i] : turn.limit;
  }
  return turn.limit;
}

EncodedRow RowEncoder::EncodeForm(const ConversationRow& row) const {
  if (!turns_) {
    throw UserError(
        fmt::format("{} has no chat template, which rows of \"messages\" need; put a "
                    "chat_template.jinja beside its tokenizer_config.json, give a template with "
                    "data.chat_template, or write the rows as \"prompt\" and \"completion\"",
                    tokenizer_.model_dir().string()));
  }
  RefuseControlTokens(row);
  const RenderedConversation conversation = turns_->Find(row);
  const std::string& text = conversation.text;
  RefuseLongText(text);
  Encoding encoding = tokenizer_.tokenizer().Encode(text);
  EncodedRow result;
  result.loss.assign(encoding.ids.size(), loss_on_ == spec::LossOn::kAll ? 1 : 0);
  bool any = false;
  for (const Turn& turn : conversation.turns) {
    const size_t end = EndOfTurn(encoding, text, turn);
    for (size_t i = 0; i < encoding.ids.size(); ++i) {
      if (encoding.starts[i] < turn.begin || encoding.starts[i] >= end) continue;
      result.loss[i] = 1;
      any = true;
    }
  }
  if (!any) throw RowError(RowProblem::kNoAnswer, "the template prints no assistant turn");
  result.tokens = std::move(encoding.ids);
  return result;
}

// To tokenise takes some hundred times the memory of the text.
void RowEncoder::RefuseLongText(std::string_view text) const {
  const int64_t most = sequence_length_ * tokenizer_.tokenizer().longest_token();
  if (sequence_length_ == 0 || static_cast<int64_t>(text.size()) <= most) return;
  throw RowError(RowProblem::kTooLong,
                 fmt::format("a text of {} bytes, more than {} tokens (sequence_length) can hold",
                             text.size(), sequence_length_));
}

// Authors often end a text with the end token themselves; that one is not a control token in it.
std::string_view RowEncoder::WithoutEndToken(std::string_view text) const {
  if (!eos_text_.empty() && text.ends_with(eos_text_)) text.remove_suffix(eos_text_.size());
  return text;
}

EncodedRow RowEncoder::EncodePlain(std::string_view text, size_t loss_from) const {
  EncodedRow result;
  if (tokenizer_.adds_bos()) {
    result.tokens.push_back(*tokenizer_.bos_id());
    result.loss.push_back(0);
    result.breaks.push_back(EncodedRow::kNone);
  }
  RefuseLongText(text);
  const Encoding encoding = tokenizer_.tokenizer().Encode(text);
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    result.tokens.push_back(encoding.ids[i]);
    result.loss.push_back(encoding.starts[i] >= loss_from ? 1 : 0);
    result.breaks.push_back(BreakBefore(text, encoding.starts[i]));
  }
  if (tokenizer_.eos_id()) {
    result.tokens.push_back(*tokenizer_.eos_id());
    result.loss.push_back(1);
    result.breaks.push_back(EncodedRow::kNone);
  }
  return result;
}

EncodedRow RowEncoder::EncodeForm(const CompletionRow& row) const {
  const std::string_view completion = WithoutEndToken(row.completion);
  RefuseControlToken(row.prompt, "the prompt", /*author_text=*/false);
  RefuseControlToken(completion, "the completion", /*author_text=*/true);
  const size_t loss_from = loss_on_ == spec::LossOn::kAll ? 0 : row.prompt.size();
  return EncodePlain(row.prompt + std::string(completion), loss_from);
}

EncodedRow RowEncoder::EncodeForm(const TextRow& row) const {
  const std::string_view text = WithoutEndToken(row.text);
  RefuseControlToken(text, "the text", /*author_text=*/true);
  return EncodePlain(text, 0);
}

}  // namespace sft::engine
