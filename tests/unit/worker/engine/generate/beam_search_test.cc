#include "worker/engine/generate/beam_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "worker/engine/base/error.h"
#include "worker/engine/generate/pages.h"

namespace sft::engine {
namespace {

using Ids = std::vector<int32_t>;
constexpr int kWords = 6;
constexpr int32_t kStop = 5;

// A model of few words: what may come depends on the whole answer, by chance but always the same.
std::vector<float> LogProbabilitiesAfter(const Ids& answer) {
  std::seed_seq seed(answer.begin(), answer.end());
  std::mt19937 random(seed);
  std::vector<double> weights;
  double total = 0;
  for (int i = 0; i < kWords; ++i) {
    weights.push_back(std::exp(std::uniform_real_distribution<double>(0, 2)(random)));
    total += weights.back();
  }
  std::vector<float> logs;
  for (const double weight : weights) logs.push_back(static_cast<float>(std::log(weight / total)));
  return logs;
}

std::optional<BeamSearch::End> EndsAtStop(std::span<const int32_t> tokens) {
  if (tokens.back() != kStop) return std::nullopt;
  return BeamSearch::End{EndReason::kStopToken, 0};
}

std::vector<BeamSearch::Found> Search(const BeamOptions& options, int64_t most,
                                      int* steps = nullptr) {
  BeamSearch search(options, 1, most);
  for (;;) {
    const bool begins = search.beams()[0].empty();
    for (size_t i = 0; i < (begins ? 1 : search.beams().size()); ++i) {
      search.Offer(i, LogProbabilitiesAfter(search.beams()[i]));
    }
    EXPECT_TRUE(search.complete());
    if (steps != nullptr) ++*steps;
    if (search.Advance(EndsAtStop).empty()) return search.answers();
  }
}

// All answers of `most` tokens at most, with their scores.
void Enumerate(const Ids& answer, double sum, int64_t most, double penalty,
               std::map<Ids, double>& scores) {
  const std::vector<float> logs = LogProbabilitiesAfter(answer);
  for (int32_t token = 0; token < kWords; ++token) {
    Ids longer = answer;
    longer.push_back(token);
    const double total = sum + static_cast<double>(logs[static_cast<size_t>(token)]);
    const auto length = static_cast<int64_t>(longer.size());
    if (token == kStop || length == most) {
      scores[longer] = total / std::pow(static_cast<double>(length), penalty);
    } else {
      Enumerate(longer, total, most, penalty, scores);
    }
  }
}

// With as many beams as there are beginnings nothing is overlooked.
TEST(BeamSearchTest, FindsTheBestOfAllAnswersWhereNoneIsLeftOut) {
  for (const double penalty : {-0.5, 0.0, 0.7, 1.0, 2.0}) {
    std::map<Ids, double> all;
    Enumerate({}, 0.0, 3, penalty, all);
    const auto found =
        Search({.beams = 40, .answers = 3, .length_penalty = penalty, .stop = BeamStop::kNever}, 3);
    std::set<double, std::greater<>> best;
    for (const auto& [tokens, score] : all) best.insert(score);
    auto next = best.begin();
    for (const BeamSearch::Found& answer : found) {
      EXPECT_TRUE(answer.whole);
      ASSERT_TRUE(all.contains(answer.tokens));
      EXPECT_NEAR(answer.score, all[answer.tokens], 1e-5);
      EXPECT_NEAR(answer.score, *next++, 1e-5) << "penalty " << penalty;
    }
  }
}

TEST(BeamSearchTest, EarlyStoppingEndsWithAsManyAnswersAsBeams) {
  int early = 0, rule = 0, never = 0;
  const BeamOptions options{.beams = 3, .answers = 3, .length_penalty = 0.0};
  for (BeamOptions each : {options}) {
    each.stop = BeamStop::kYes;
    for (const auto& found : Search(each, 30, &early)) EXPECT_TRUE(found.whole);
    each.stop = BeamStop::kNo;
    Search(each, 30, &rule);
    each.stop = BeamStop::kNever;
    Search(each, 30, &never);
  }
  EXPECT_LE(early, rule);
  EXPECT_LE(rule, never);
  EXPECT_LT(never, 30) << "without a penalty longer answers cannot become better";
}

TEST(BeamSearchTest, AnAnswerThatIsCutOffSaysSo) {
  const auto found = Search({.beams = 2, .answers = 2}, 1);
  ASSERT_EQ(found.size(), 2u);
  for (const auto& answer : found) {
    EXPECT_EQ(answer.tokens.size(), 1u);
    EXPECT_EQ(answer.end.reason,
              answer.tokens[0] == kStop ? EndReason::kStopToken : EndReason::kLength);
  }
  EXPECT_GT(found[0].score, found[1].score);
}

TEST(BeamSearchTest, OptionsOutOfRangeAreRefusedByName) {
  EXPECT_THROW(CheckBeams({.beams = 0}), UserError);
  EXPECT_THROW(CheckBeams({.beams = 65}), UserError);
  EXPECT_THROW(CheckBeams({.beams = 2, .answers = 3}), UserError);
  EXPECT_THROW(CheckBeams({.length_penalty = NAN}), UserError);
  CheckBeams({.beams = 64, .answers = 64});
}

// Random forks: what a page holds is what was written for the beam's own tokens.
TEST(BeamPagesTest, BeamsShareWhatTheyHaveInCommonAndNothingElse) {
  constexpr int64_t kBeams = 4, kPrompt = 19, kNew = 60;
  constexpr int64_t kPage = PageTable::kPageTokens;
  const int64_t needed = BeamPages::Needed(kPrompt, kNew, kBeams);
  EXPECT_EQ(needed, 1 + kBeams * 4);
  Ids pages;
  for (int64_t i = 0; i < needed; ++i) pages.push_back(static_cast<int32_t>(100 + i));
  BeamPages own(pages);
  std::map<int64_t, std::vector<int>> memory;  // of pages: the token in each place
  std::vector<std::vector<int>> texts(1);
  std::vector<Ids> tables = {own.First(kPrompt)};
  const auto write = [&](const Ids& table, int64_t position, int token) {
    auto& page = memory[table[static_cast<size_t>(position / kPage)]];
    page.resize(kPage, -1);
    page[static_cast<size_t>(position % kPage)] = token;
  };
  for (int64_t i = 0; i < kPrompt; ++i) {
    texts[0].push_back(static_cast<int>(i));
    write(tables[0], i, static_cast<int>(i));
  }
  std::mt19937 random(7);
  size_t copied = 0;
  for (int64_t step = 0; step < kNew - 1; ++step) {
    const int64_t length = kPrompt + step;
    std::vector<size_t> parents;
    for (int64_t b = 0; b < kBeams; ++b) parents.push_back(random() % tables.size());
    std::vector<BeamPages::Copy> copies;
    tables = own.Fork(tables, parents, length, copies);
    for (const auto& copy : copies) memory[copy.to] = memory[copy.from];
    copied += copies.size();
    std::vector<std::vector<int>> next;
    for (size_t b = 0; b < parents.size(); ++b) {
      next.push_back(texts[parents[b]]);
      next.back().push_back(static_cast<int>(1000 * (b + 1) + static_cast<size_t>(step)));
      write(tables[b], length, next.back().back());
    }
    texts = next;
    for (size_t b = 0; b < texts.size(); ++b) {
      for (size_t i = 0; i < texts[b].size(); ++i) {
        ASSERT_EQ(memory[tables[b][i / kPage]][i % kPage], texts[b][i])
            << "step " << step << ", beam " << b << ", token " << i;
      }
    }
  }
  EXPECT_GT(copied, 0u);
}

}  // namespace
}  // namespace sft::engine
