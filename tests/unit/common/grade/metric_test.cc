#include "common/grade/metric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace sft::grade {
namespace {

using testing::HasSubstr;

TEST(MetricTest, EveryMetricOfAnswersGradesEveryRowOrSaysWhyNot) {
  std::vector<std::string> names;
  std::set<std::string_view> all;
  for (const Metric& metric : Metrics()) {
    EXPECT_TRUE(all.insert(metric.name).second) << metric.name;
    if (metric.kind != MetricKind::kLoss) names.emplace_back(metric.name);
  }
  const auto grader = Grader::Make(names, "4");
  ASSERT_TRUE(grader.ok()) << grader.status();
  for (const std::string answer : {"42", "", "no", "\xff", "{", "####"}) {
    for (const std::string reference : {"42", "", "no", "\xff"}) {
      const auto grades = grader->Grade(answer, reference);
      ASSERT_EQ(grades.size(), names.size());
      for (size_t i = 0; i < grades.size(); ++i) {
        if (!grades[i].ok()) continue;
        ASSERT_EQ(grades[i]->size(), grader->metrics()[i]->sums) << names[i];
        const auto value = ValueOf(*grader->metrics()[i], *grades[i]);
        ASSERT_TRUE(value.has_value()) << names[i];
        EXPECT_TRUE(*value >= 0 && *value <= 100 + 1e-9) << names[i] << " " << *value;
        if (answer == "42" && reference == "42" && names[i] != "rouge_2" && names[i] != "bleu") {
          EXPECT_NEAR(*value, 100, 1e-9) << names[i];
        }
      }
    }
  }
}

TEST(MetricTest, ARowThatOneMetricCannotGradeIsGradedByTheOthers) {
  const auto grader = Grader::Make({"number", "exact_match"}, "");
  const auto grades = grader->Grade("x", "x");
  EXPECT_THAT(std::string(grades[0].status().message()), HasSubstr("no number"));
  EXPECT_EQ(*grades[1], (std::vector<double>{1, 1}));
}

TEST(MetricTest, NamesThatAreNoneAndPatternsThatAreMissingAreRefused) {
  const auto refusal = [](const std::vector<std::string>& names, const std::string& pattern) {
    return std::string(Grader::Make(names, pattern).status().message());
  };
  EXPECT_THAT(refusal({"rogue_l"}, ""),
              HasSubstr("\"rogue_l\" is no metric of answers; there are"));
  EXPECT_THAT(refusal({"loss"}, ""), HasSubstr("\"loss\""));
  EXPECT_THAT(refusal({"f1", "f1"}, ""), HasSubstr("twice"));
  EXPECT_THAT(refusal({"regex"}, ""), HasSubstr("pattern"));
  EXPECT_THAT(refusal({"regex"}, "("), HasSubstr("missing"));
}

TEST(MetricTest, LossesAreOfTheSumsAndNotOfRows) {
  const std::vector<double> sums = {20.0, 10.0};
  EXPECT_DOUBLE_EQ(*ValueOf(*FindMetric("loss"), sums), 2);
  EXPECT_DOUBLE_EQ(*ValueOf(*FindMetric("perplexity"), sums), std::exp(2.0));
  EXPECT_DOUBLE_EQ(*ValueOf(*FindMetric("bits_per_byte"), sums), 2 / std::log(2.0));
  EXPECT_FALSE(ValueOf(*FindMetric("loss"), std::vector<double>{0, 0}).has_value());
}

}  // namespace
}  // namespace sft::grade
