#include "client/output/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/json.h"

namespace sft::client {
namespace {

using testing::HasSubstr;
using testing::Not;

Json Report() {
  return ParseOrderedJson(R"({
    "model": "m", "adapter": "job-a", "rows": 60, "without_question": 2, "errors": 1,
    "metrics": [
      {"name": "exact_match", "rows": 60, "base": 10, "tuned": 40.5, "difference": 30.5, "low": 20,
       "high": 41, "p": 0.0002, "only_base": 3, "only_tuned": 21, "mcnemar_p": 0.00000001},
      {"name": "number", "rows": 12, "base": 0, "tuned": 1, "difference": 1, "low": -2, "high": 4,
       "p": 0.5, "ungraded": 48, "first_ungraded": "line 3: the reference holds no number"},
      {"name": "loss", "rows": 60, "base": null, "tuned": null, "difference": null, "low": null,
       "high": null, "p": null}],
    "samples": [
      {"line": 7, "prompt": "a\nb", "reference": "r", "base": {"answer": "x\u001b[31m",
       "scores": {"exact_match": 0}}, "tuned": {"answer": "r", "scores": {"exact_match": 100}}},
      {"line": 8, "prompt": "second", "reference": "r", "base": {"answer": "y", "scores": {}}}]})");
}

TEST(EvaluationTest, ATableHasBothModelsAndWhatTheReaderHasToKnow) {
  const std::string text = EvaluationText(Report());
  EXPECT_THAT(text, testing::ContainsRegex(
                        "exact_match +10\\.00 +40\\.50 +\\+30\\.50 +\\+20\\.00 to \\+41\\.00 +"
                        "0\\.0002 +3/21 +<0\\.0001 +60"));
  EXPECT_THAT(text, HasSubstr("with 60 rows a difference below about 13 points cannot be told from "
                              "chance (exact_match)\n"));
  EXPECT_THAT(text,
              HasSubstr("number: 48 of 60 rows could not be graded and count on neither side; "
                        "line 3: the reference holds no number"));
  EXPECT_THAT(text, HasSubstr("2 rows without a question"));
  EXPECT_THAT(text, HasSubstr("1 row with an answer that ended with an error"));
}

TEST(EvaluationTest, FewRowsAreToldOfOnlyWherePassesAreCounted) {
  Json report = Report();
  report["metrics"][0].erase("only_base");
  EXPECT_THAT(EvaluationText(report), testing::Not(HasSubstr("told from chance")));
}

TEST(EvaluationTest, SamplesStandBesideEachOtherAndMoveNoCursor) {
  const std::string text = SamplesText(Report(), 1);
  EXPECT_THAT(text, HasSubstr("line 7\n  prompt     a b\n  reference  r\n  base       x\\x1b[31m\n"
                              "             [exact_match 0.0000]\n  tuned      r\n"));
  EXPECT_THAT(text, Not(HasSubstr("second")));
  EXPECT_EQ(SamplesText(Report(), 0), "");
}

TEST(EvaluationTest, SeveralReportsStandBesideEachOther) {
  Json base = ParseOrderedJson(R"({"metrics": [{"name": "f1", "base": 5}]})");
  const std::string text = EvaluationsTable({"job-a", "job-b"}, {Report(), base});
  EXPECT_THAT(text, testing::ContainsRegex("exact_match +40\\.50 +-\n"));
  EXPECT_THAT(text, testing::ContainsRegex("f1 +- +5\\.0000\n"));
}

TEST(EvaluationTest, AReportOfAnotherFormIsNoFault) {
  for (const char* text :
       {"{}", R"({"metrics": {}})", R"({"metrics": [1, "a", {}], "samples": [3]})",
        R"({"metrics": [{"name": 3, "tuned": []}], "rows": "many"})"}) {
    const Json report = ParseOrderedJson(text);
    EXPECT_THAT(EvaluationText(report), HasSubstr("METRIC")) << text;
    SamplesText(report, 5);
    EvaluationsTable({"a"}, {report});
  }
}

}  // namespace
}  // namespace sft::client
