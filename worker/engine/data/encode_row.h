#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "common/spec/job_spec.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/row.h"
#include "worker/engine/data/turns.h"

namespace sft::engine {

// One row as the model reads it.
struct EncodedRow {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> loss;  // loss[i]: token i is to be predicted; loss[0] is 0
  // For plain text alone: what ends before token i, where it may be cut.
  enum Break : uint8_t { kNone, kLine, kParagraph };
  std::vector<uint8_t> breaks;

  int64_t LossTokens() const { return std::accumulate(loss.begin(), loss.end(), int64_t{0}); }
};

// Rows to tokens. A conversation is rendered whole, encoded whole, and a token carries loss iff its
// first byte lies in an assistant turn; encoding turns apart would split text differently from what
// the model sees. The end token of a turn belongs to it, what follows it does not.
// May be used from any thread at the same time; `tokenizer` outlives it.
class RowEncoder {
 public:
  // Texts that cannot be of `sequence_length` tokens or fewer are refused before they are
  // tokenised; 0: none are.
  RowEncoder(const ChatTokenizer& tokenizer, spec::LossOn loss_on, int sequence_length = 0);

  // Throws RowError.
  EncodedRow Encode(const Row& row) const;
  // Whether rows of plain text begin with a token that stands for their start.
  bool StartsWithBos(const EncodedRow& row) const;

 private:
  EncodedRow EncodeForm(const ConversationRow& row) const;
  EncodedRow EncodeForm(const CompletionRow& row) const;
  EncodedRow EncodeForm(const TextRow& row) const;
  EncodedRow EncodePlain(std::string_view text, size_t loss_from) const;
  void RefuseControlTokens(const ConversationRow& row) const;
  void RefuseControlToken(std::string_view text, std::string_view where, bool author_text) const;
  void RefuseLongText(std::string_view text) const;
  std::string_view WithoutEndToken(std::string_view text) const;
  size_t EndOfTurn(const Encoding& encoding, std::string_view text, const Turn& turn) const;

  const ChatTokenizer& tokenizer_;
  const spec::LossOn loss_on_;
  const int sequence_length_;
  std::optional<TurnFinder> turns_;   // nothing: the model has no template
  std::vector<int32_t> special_ids_;  // ascending
  std::string eos_text_;
};

}  // namespace sft::engine
