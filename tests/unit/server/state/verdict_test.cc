#include "server/state/verdict.h"

#include <gtest/gtest.h>

namespace sft::server {
namespace {

TEST(VerdictTest, SurvivesItsStorage) {
  Verdict verdict;
  verdict.domain = Verdict::Domain::kUser;
  verdict.code = "nan_loss";
  verdict.message = "loss is NaN at step 3";
  verdict.advice = "lower the learning rate";
  verdict.rank = 2;
  verdict.node = "node-a";
  verdict.evidence = {"exit code 64", "last line"};
  EXPECT_EQ(VerdictFromJson(ToJson(verdict)), verdict);
  EXPECT_EQ(VerdictFromJson(ToJson(Verdict())), Verdict());
}

TEST(VerdictTest, InvalidUtf8IsKeptReadable) {
  Verdict verdict;
  verdict.code = "rank_killed";
  verdict.evidence = {"\xff\xfe"};
  EXPECT_EQ(VerdictFromJson(ToJson(verdict)).code, "rank_killed");
}

TEST(VerdictTest, AnUnreadableVerdictSaysSo) {
  EXPECT_EQ(VerdictFromJson("not json").code, "unreadable_verdict");
  EXPECT_EQ(VerdictFromJson("{}").domain, Verdict::Domain::kUnknown);
}

}  // namespace
}  // namespace sft::server
