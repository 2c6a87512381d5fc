#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// BLEU and chrF as the package sacrebleu has them: counts of one answer against its reference, and
// the score of counts that were added over all rows.

namespace sft::grade {

inline constexpr size_t kBleuOrder = 4, kChrfOrder = 6;
// Words of answer and reference, then matches and then totals by the length of the run.
using BleuCounts = std::array<double, 2 + 2 * kBleuOrder>;
// For each length of a run: those of the answer, of the reference, and in both.
using ChrfCounts = std::array<double, 3 * kChrfOrder>;

// Signature nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0.
BleuCounts CountBleu(std::string_view answer, std::string_view reference);
double BleuScore(std::span<const double> counts);  // of 100

// Signature nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0.
ChrfCounts CountChrf(std::string_view answer, std::string_view reference);
double ChrfScore(std::span<const double> counts);  // of 100

// The words that BLEU compares: those of mteval-v13a.
std::vector<std::string> Words13a(std::string_view text);

}  // namespace sft::grade
