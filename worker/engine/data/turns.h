#pragma once

#include <string>
#include <vector>

#include "worker/engine/data/chat_template.h"
#include "worker/engine/data/row.h"

namespace sft::engine {

// Span of one assistant turn in the rendered conversation: all that the model would write.
struct Turn {
  size_t begin = 0;  // the first byte after the generation prompt
  // Bytes of the turn end here at the latest; what a template puts between turns may be included.
  size_t limit = 0;
  // Where the message's own text is known to end: the end token is looked for from here.
  // 0: not known; the end token is the last one before `limit`.
  size_t text_end = 0;
};

// A conversation as the model sees it.
struct RenderedConversation {
  std::string text;
  std::vector<Turn> turns;  // of the trained messages, in order, disjoint
};

// Renders conversations and finds the assistant turns in them. Templates do not say where a turn
// stands, and some rewrite earlier turns once later ones exist (dropping their reasoning), so
// places are found by rendering again:
//   - a turn begins where the conversation before it, with a generation prompt, ends;
//   - it ends where the conversation up to it ends;
//   - where the template has rewritten what stands before, the message is replaced by a known word,
//     and what stands around the word in that rendering is found again in the real one;
//   - where the template takes no word in its place (a call whose result follows), the turn ends
//     where the message behind it begins, whose header the conversation up to there shows.
// {% generation %} blocks are taken as they are. May be used from any thread at the same time.
class TurnFinder {
 public:
  explicit TurnFinder(const ChatTemplate& chat_template);

  // Throws RowError (kTemplate) when the template refuses the conversation or hides where a turn
  // is.
  RenderedConversation Find(const ConversationRow& row) const;

 private:
  class Search;
  ChatTemplate template_;
  // Text that add_generation_prompt appends after a user's message; may be empty.
  std::string generation_prompt_;
};

}  // namespace sft::engine
