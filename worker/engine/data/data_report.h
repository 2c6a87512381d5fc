#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/dataset.h"

namespace sft::engine {

// Rows longer than `limit` tokens.
struct LongerRows {
  int64_t limit = 0, rows = 0;
};

// What a data set is to a model, before a job: DatasetStats has its rows, forms and problems.
struct DataReport {
  int64_t rows = 0;  // that are measured: documents, or pairs of them
  // Tokens of a row; of a pair, of its longer answer with the prompt.
  int64_t shortest = 0, median = 0, p90 = 0, p99 = 0, longest = 0;
  std::vector<LongerRows> longer;  // over 1k, 2k, ... 32k and over sequence_length
  // Padding's share of the tokens in batches of `batch` rows as they come, each as long as its
  // longest row, and in sequences into which short rows are packed. Rows that are too long count as
  // cut.
  double padded_share = 0, packed_share = 0;
  int64_t trained_tokens = 0;           // of an epoch: rows that are too long count as cut
  int64_t steps = 0, packed_steps = 0;  // of an epoch of batches of `batch` rows, or sequences
};

// `pairs`: a row is two documents, the chosen answer and the rejected one.
DataReport ReportOn(const Dataset& dataset, int64_t sequence_length, int64_t batch,
                    bool pairs = false);

// The row's text with each run of tokens that carry loss between the marks. `show` (null: as it is)
// makes of each run what is shown.
std::string MarkedText(const Document& document, const Tokenizer& tokenizer, std::string_view begin,
                       std::string_view end, std::string (*show)(std::string_view) = nullptr);

}  // namespace sft::engine
