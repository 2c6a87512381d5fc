#pragma once

#include <vector>

#include "common/spec/job_spec.h"
#include "worker/engine/data/encode_row.h"

namespace sft::engine {

// What is made of a row that has more tokens than a sequence (data.on_long_rows).
struct LongRowRule {
  spec::LongRows rule = spec::LongRows::kError;
  int64_t length = 0;   // tokens of a sequence
  int64_t overlap = 1;  // of pieces of a text; each token carries loss in one piece alone
};

// What becomes of a long row.
struct FittedRow {
  std::vector<EncodedRow> documents;
  int64_t cut_tokens = 0;       // of the row that are in no document
  int64_t cut_loss_tokens = 0;  // of its tokens with loss, those that carry it in none
};

// The documents to train on, each of at most `rule.length` tokens with one at least that carries
// loss. Nothing is put behind a cut: the model must not learn to stop there. Throws RowError
// (kTooLong) where the rule gives none: it refuses long rows, or a single turn is longer; and
// (kNoAnswer) where what is left carries no loss.
FittedRow FitLongRow(const RowEncoder& encoder, const Row& row, EncodedRow whole,
                     const LongRowRule& rule);

}  // namespace sft::engine
