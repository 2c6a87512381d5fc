#include "worker/engine/data/turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "common/base/json.h"
#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

using Json = nlohmann::ordered_json;

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// Calls come with a content of null, which some templates take for a text. Nothing: there is none.
std::optional<ConversationRow> WithoutNullContent(const ConversationRow& row) {
  ConversationRow other = row;
  bool any = false;
  for (Json& message : other.messages) {
    const auto content = message.find("content");
    if (content == message.end() || !content->is_null()) continue;
    message.erase(content);
    any = true;
  }
  return any ? std::optional(std::move(other)) : std::nullopt;
}

size_t CommonPrefix(std::string_view a, std::string_view b) {
  const auto [end, unused] = std::ranges::mismatch(a, b);
  return static_cast<size_t>(end - a.begin());
}

}  // namespace

// The renderings of one conversation.
class TurnFinder::Search {
 public:
  Search(const TurnFinder& finder, const ConversationRow& row)
      : finder_(finder),
        row_(row),
        tools_(row.tools.is_null() ? "" : DumpJson(row.tools)),
        variables_(row.variables.is_null() ? "" : DumpJson(row.variables)) {}

  RenderedConversation Run() {
    RenderedText rendered;
    try {
      rendered = Render(row_.messages, /*add_generation_prompt=*/false);
    } catch (const UserError& error) {
      throw RowError(RowProblem::kTemplate, error.what());
    }
    text_ = std::move(rendered.text);
    RenderedConversation result;
    result.turns = rendered.generation.empty() ? FindTurns() : MarkedTurns(rendered.generation);
    result.text = std::move(text_);
    return result;
  }

 private:
  // A message replaced by a word: where the word's neighbours stand in the real text.
  struct Replaced {
    // The real text up to here equals the rendering before the word, or a part of it.
    size_t same_until = 0;
    bool reaches_word = false;       // all of it: the message's own text begins at same_until
    std::optional<size_t> text_end;  // the message's own text ends here
  };

  // That is nowhere in the conversation.
  std::string UnusedWord() const {
    std::string word = "Xturn";
    while (text_.find(word) != std::string::npos) word += 'x';
    return word;
  }

  // The message with nothing but that word in it.
  static void ReplaceBy(const std::string& word, Json& message) {
    for (const char* key : {"tool_calls", "thinking", "reasoning_content"}) message.erase(key);
    message["content"] = word;
  }

  // Where the word stands, if it does once.
  static std::optional<size_t> FindOnce(std::string_view text, std::string_view word) {
    const size_t at = text.find(word);
    if (at == text.npos || text.find(word, at + 1) != text.npos) return std::nullopt;
    return at;
  }

  RenderedText Render(const Json& messages, bool add_generation_prompt) const {
    const std::string json = DumpJson(messages);
    return finder_.template_.Render({.messages_json = json,
                                     .tools_json = tools_,
                                     .variables_json = variables_,
                                     .add_generation_prompt = add_generation_prompt});
  }

  // The first `count` messages, or nothing when the template refuses them alone. `last`: a word in
  // place of the last one.
  std::optional<std::string> RenderFirst(size_t count, bool add_generation_prompt,
                                         const std::string& last = {}) const {
    if (count == 0) return std::nullopt;
    Json messages = Json::array();
    for (size_t i = 0; i < count; ++i) messages.push_back(row_.messages[i]);
    if (!last.empty()) ReplaceBy(last, messages.back());
    try {
      return Render(messages, add_generation_prompt).text;
    } catch (const UserError&) {
      return std::nullopt;
    }
  }

  Replaced Replace(size_t index) const {
    const std::string word = UnusedWord();
    Json messages = row_.messages;
    ReplaceBy(word, messages[index]);
    std::string other;
    try {
      other = Render(messages, /*add_generation_prompt=*/false).text;
    } catch (const UserError&) {
      return {};
    }
    const std::optional<size_t> at = FindOnce(other, word);
    if (!at) return {};
    Replaced result;
    result.same_until = CommonPrefix(text_, std::string_view(other).substr(0, *at));
    result.reaches_word = result.same_until == *at;
    const std::string_view rest = std::string_view(other).substr(*at + word.size());
    if (text_.size() >= result.same_until + rest.size() && text_.ends_with(rest)) {
      result.text_end = text_.size() - rest.size();
    }
    return result;
  }

  // Where all of the message begins, its header included: before its text stands what the messages
  // up to it have more than those before it.
  std::optional<size_t> FindStart(size_t index) const {
    const std::string word = UnusedWord();
    const auto without = RenderFirst(index, /*add_generation_prompt=*/false);
    const auto with = RenderFirst(index + 1, /*add_generation_prompt=*/false, word);
    if (!without || !with || !with->starts_with(*without)) return std::nullopt;
    const std::optional<size_t> at = FindOnce(*with, word);
    const Replaced replaced = Replace(index);
    if (!at || *at < without->size() || !replaced.reaches_word) return std::nullopt;
    const std::string_view header =
        std::string_view(*with).substr(without->size(), *at - without->size());
    if (!std::string_view(text_).substr(0, replaced.same_until).ends_with(header)) {
      return std::nullopt;
    }
    return replaced.same_until - header.size();
  }

  // Where the turn ends at the latest.
  std::optional<size_t> FindLimit(size_t index) const {
    return index + 1 == row_.messages.size() ? std::optional(text_.size()) : FindStart(index + 1);
  }

  std::vector<Turn> MarkedTurns(const std::vector<TextSpan>& spans) const {
    size_t assistants = 0;
    for (const Json& message : row_.messages) assistants += message.at("role") == "assistant";
    const bool all = assistants == static_cast<size_t>(std::ranges::count(row_.trained, true));
    if (!all && assistants != spans.size()) {
      throw RowError(RowProblem::kTemplate,
                     "the template's {% generation %} blocks do not match its assistant messages");
    }
    std::vector<Turn> turns;
    size_t span = 0;
    for (size_t i = 0; i < row_.messages.size() && !all; ++i) {
      if (row_.messages[i].at("role") != "assistant") continue;
      if (row_.trained[i]) turns.push_back(Marked(spans[span]));
      ++span;
    }
    if (all) {
      for (const TextSpan& each : spans) turns.push_back(Marked(each));
    }
    return turns;
  }

  static Turn Marked(const TextSpan& span) {
    return {.begin = span.begin, .limit = span.end, .text_end = span.end};
  }

  std::vector<Turn> FindTurns() const {
    std::vector<Turn> turns;
    size_t done = 0;  // the end of the turn before
    for (size_t i = 0; i < row_.messages.size(); ++i) {
      if (!row_.trained[i]) continue;
      const std::optional<size_t> begin = FindBegin(i);
      const std::optional<Turn> turn = begin ? FindEnd(i, *begin) : std::nullopt;
      if (!turn || turn->begin < done || turn->limit < turn->begin) {
        throw RowError(RowProblem::kTemplate,
                       fmt::format("the chat template rewrites the conversation so that message {} "
                                   "cannot be told apart; split the row there",
                                   i));
      }
      done = turn->begin;
      turns.push_back(*turn);
    }
    return turns;
  }

  std::optional<size_t> FindBegin(size_t index) const {
    const std::string& prompt = finder_.generation_prompt_;
    const std::optional<std::string> before = RenderFirst(index, /*add_generation_prompt=*/true);
    if (before && text_.starts_with(*before)) {
      // Without a generation prompt the turn's own header, if any, stands after `before`.
      if (!prompt.empty()) return before->size();
      const Replaced replaced = Replace(index);
      if (!replaced.reaches_word || replaced.same_until < before->size()) return std::nullopt;
      const auto header =
          std::string_view(text_).substr(before->size(), replaced.same_until - before->size());
      return IsBlank(header) ? before->size() : WithSpaceBefore(replaced.same_until);
    }
    const Replaced replaced = Replace(index);
    if (prompt.empty()) {
      return replaced.reaches_word ? std::optional(WithSpaceBefore(replaced.same_until))
                                   : std::nullopt;
    }
    return FindPrompt(index, replaced);
  }

  // A space before the answer's first word is one token with it.
  size_t WithSpaceBefore(size_t begin) const {
    while (begin > 0 && text_[begin - 1] == ' ') --begin;
    return begin;
  }

  // The end of the generation prompt between the message before and this one's text. Where the
  // prompt is not there as a whole (it opens reasoning, which the template drops from earlier
  // turns), the turn begins with its text.
  std::optional<size_t> FindPrompt(size_t index, const Replaced& replaced) const {
    size_t from = 0;
    if (index > 0) {
      const std::optional<size_t> end = Replace(index - 1).text_end;
      if (!end) return std::nullopt;
      from = *end;
    }
    const std::string_view prompt = finder_.generation_prompt_;
    if (replaced.same_until < from) {
      // A call of a tool, in whose place the template takes no text.
      const size_t at = text_.find(prompt, from), limit = FindLimit(index).value_or(0);
      return at < limit ? std::optional(at + prompt.size()) : std::nullopt;
    }
    const auto between = std::string_view(text_).substr(from, replaced.same_until - from);
    if (const size_t at = between.rfind(prompt); at != between.npos)
      return from + at + prompt.size();
    if (replaced.reaches_word) return replaced.same_until;
    // The prompt is of answers alone (it names their channel), and this turn leaves it on the way.
    for (size_t shared = std::min(between.size(), prompt.size()); shared > 0; --shared) {
      if (between.ends_with(prompt.substr(0, shared))) return replaced.same_until;
    }
    return std::nullopt;
  }

  std::optional<Turn> FindEnd(size_t index, size_t begin) const {
    if (index + 1 == row_.messages.size()) return Turn{.begin = begin, .limit = text_.size()};
    const std::optional<std::string> upto = RenderFirst(index + 1, /*add_generation_prompt=*/false);
    if (upto && text_.starts_with(*upto)) return Turn{.begin = begin, .limit = upto->size()};
    const std::optional<size_t> end = Replace(index).text_end;
    if (end && *end >= begin) return Turn{.begin = begin, .limit = text_.size(), .text_end = *end};
    const std::optional<size_t> limit = FindLimit(index);
    return limit ? std::optional(Turn{.begin = begin, .limit = *limit}) : std::nullopt;
  }

  const TurnFinder& finder_;
  const ConversationRow& row_;
  const std::string tools_;
  const std::string variables_;
  std::string text_;
};

TurnFinder::TurnFinder(const ChatTemplate& chat_template) : template_(chat_template) {
  const std::string probe = R"([{"role":"user","content":"x"}])";
  try {
    const std::string without = template_.Render({.messages_json = probe}).text;
    const std::string with =
        template_.Render({.messages_json = probe, .add_generation_prompt = true}).text;
    if (with.starts_with(without)) generation_prompt_ = with.substr(without.size());
  } catch (const UserError&) {
    // A template that refuses so short a conversation is searched without its generation prompt.
  }
}

RenderedConversation TurnFinder::Find(const ConversationRow& row) const {
  try {
    return Search(*this, row).Run();
  } catch (const RowError& error) {
    const std::optional<ConversationRow> other = WithoutNullContent(row);
    if (error.problem() != RowProblem::kTemplate || !other) throw;
    return Search(*this, *other).Run();
  }
}

}  // namespace sft::engine
