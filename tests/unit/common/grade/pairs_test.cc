#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/grade/match.h"
#include "common/grade/metric.h"
#include "common/grade/ngrams.h"
#include "common/grade/rouge.h"

// Scores against rouge-score, sacrebleu and SQuAD's script: tests/parity/scores/make_goldens.py.

namespace sft::grade {
namespace {

using Json = nlohmann::json;

class PairsTest : public testing::Test {
 protected:
  PairsTest() {
    std::ifstream file(SFT_SOURCE_DIR "/tests/parity/scores/pairs.jsonl");
    for (std::string line; std::getline(file, line);) lines_.push_back(Json::parse(line));
  }

  std::vector<Json> lines_;  // the last has the corpus scores
};

TEST_F(PairsTest, EveryPairHasTheScoresOfTheReferencePackages) {
  ASSERT_EQ(lines_.size(), 1001u);
  for (size_t i = 0; i + 1 < lines_.size(); ++i) {
    const Json& line = lines_[i];
    const std::string answer = line[0], reference = line[1];
    SCOPED_TRACE(line.dump());
    const auto rouge = line[2].get<std::vector<double>>();
    EXPECT_NEAR(RougeN(answer, reference, 1).f1, rouge[0], 1e-9);
    EXPECT_NEAR(RougeN(answer, reference, 2).f1, rouge[1], 1e-9);
    EXPECT_NEAR(RougeL(answer, reference)->f1, rouge[2], 1e-9);
    EXPECT_NEAR(RougeLsum(answer, reference)->f1, rouge[3], 1e-9);
    const BleuCounts counts = CountBleu(answer, reference);
    EXPECT_EQ(std::vector<double>(counts.begin(), counts.end()),
              line[3].get<std::vector<double>>());
    EXPECT_NEAR(ChrfScore(CountChrf(answer, reference)), line[4].get<double>(), 1e-8);
    EXPECT_EQ(Normalized(answer) == Normalized(reference), line[5] == 1);
    EXPECT_NEAR(WordF1(answer, reference), line[6].get<double>(), 1e-9);
  }
}

TEST_F(PairsTest, SumsOverRowsGiveTheScoresOfTheCorpus) {
  ASSERT_EQ(lines_.size(), 1001u);
  for (const auto& [name, place] : {std::pair("bleu", 0), std::pair("chrf", 1)}) {
    const auto grader = Grader::Make({name}, "");
    std::vector<double> sums(FindMetric(name)->sums);
    for (size_t i = 0; i + 1 < lines_.size(); ++i) {
      const auto grades =
          grader->Grade(lines_[i][0].get<std::string>(), lines_[i][1].get<std::string>());
      for (size_t k = 0; k < sums.size(); ++k) sums[k] += (*grades[0])[k];
    }
    EXPECT_NEAR(*ValueOf(*FindMetric(name), sums), lines_.back()[place].get<double>(), 1e-8);
  }
}

}  // namespace
}  // namespace sft::grade
