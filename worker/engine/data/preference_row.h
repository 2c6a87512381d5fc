#pragma once

#include <string_view>
#include <vector>

#include "worker/engine/data/encode_row.h"
#include "worker/engine/data/long_rows.h"
#include "worker/engine/data/row.h"

namespace sft::engine {

// One answer to a prompt, and whether it is a good one.
struct MarkedAnswer {
  Row row;
  bool good = true;
};

// The answers of a preference row: of a pair two, the chosen one first; else one. A row is
//   {"prompt", "chosen", "rejected"}        all text, or messages
//   {"chosen", "rejected"}                  the prompt is what both begin with
//   {"input", "preferred_output", "non_preferred_output"}  as OpenAI has it
//   {"prompt", "completion", "label"}       or "messages" with "label"; or "kto_tag"
// `learns`: kPairs or kMarked. Throws RowError.
std::vector<MarkedAnswer> ParsePreference(std::string_view line, const data::RowNames& names,
                                          data::Learns learns, data::Form* form);

// The row of a job that compares nothing: of a pair the chosen answer, of marked answers the good
// ones; any other as ParseRow has it. Throws RowError.
Row ParseChosen(std::string_view line, const data::RowNames& names, data::Form* form);

// Answers as documents whose `loss` has LossMark's bits. `encoder` marks the assistant's turns;
// with `prompt_too` all other tokens of a good answer are predicted beside it. Where one of the
// documents is longer than `rule.length`, the same number of tokens is cut from the start of each
// prompt (LongRows::kTruncateLeft), so that answers stay whole and comparable. Throws RowError:
// kSameAnswers too.
struct EncodedAnswers {
  std::vector<EncodedRow> documents;
  int64_t cut_tokens = 0;
};
EncodedAnswers EncodeAnswers(const RowEncoder& encoder, const std::vector<MarkedAnswer>& answers,
                             bool prompt_too, const LongRowRule& rule);

}  // namespace sft::engine
