#pragma once

#include <string_view>

#include "common/base/status.h"

namespace sft::grade {

// Precision, recall and F1 of one answer against its reference, from 0 to 1.
struct RougeScore {
  double precision = 0, recall = 0, f1 = 0;
};

// ROUGE as the package rouge-score has it, without its stemmer. Words are runs of a-z and 0-9 of
// the text in lower case: other scripts have none.

// ROUGE-N: runs of n words, each counted as often as both texts have it.
RougeScore RougeN(std::string_view answer, std::string_view reference, int n);

// Texts of more words than this are too long for the two below, whose time grows with the product.
inline constexpr size_t kMostRougeWords = 32768;

// ROUGE-L: the longest common subsequence. OUT_OF_RANGE: a text is too long.
absl::StatusOr<RougeScore> RougeL(std::string_view answer, std::string_view reference);
// ROUGE-Lsum: the union of the subsequences that a reference's line has with the answer's lines.
absl::StatusOr<RougeScore> RougeLsum(std::string_view answer, std::string_view reference);

}  // namespace sft::grade
