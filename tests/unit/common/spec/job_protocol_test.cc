#include "common/spec/job_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/json.h"
#include "common/base/version.h"
#include "common/spec/fields.h"
#include "common/spec/job_json.h"
#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ProtocolNeed NeedOfText(const std::string& more) {
  const Resolution r = ResolveText(Minimal(more));
  EXPECT_TRUE(r.ok()) << Describe(r.problems);
  return NeedOf(r.spec);
}

TEST(JobProtocolTest, AJobThatAsksForNothingNewRunsOnWorkersOfTheFirstProtocol) {
  const ProtocolNeed need = NeedOfText("");
  EXPECT_EQ(need.protocol, 1);
  EXPECT_THAT(need.keys, IsEmpty());
}

TEST(JobProtocolTest, AKeyThatAnOlderWorkerWouldLoseNamesItself) {
  const ProtocolNeed need = NeedOfText("[checkpoint]\nsave_strategy = \"steps\"\n");
  EXPECT_EQ(need.protocol, 2);
  EXPECT_THAT(need.keys, ElementsAre("checkpoint.save_strategy"));
}

TEST(JobProtocolTest, AValueThatAnOlderWorkerDoesNotKnowNamesItsKey) {
  EXPECT_EQ(NeedOfText("[train]\nlr_scheduler = \"linear\"\n").protocol, 1);
  const ProtocolNeed need = NeedOfText("[train]\nlr_scheduler = \"inverse_sqrt\"\n");
  EXPECT_EQ(need.protocol, 2);
  EXPECT_THAT(need.keys, ElementsAre("hyperparameters.lr_scheduler"));
  EXPECT_EQ(NeedOfText("[data]\non_long_rows = \"skip\"\n").protocol, 1);
  EXPECT_THAT(NeedOfText("[data]\non_long_rows = \"split\"\n").keys,
              ElementsAre("data.on_long_rows"));
  EXPECT_THAT(NeedOfText("[train]\nwarmup_steps = 10\n").keys,
              ElementsAre("hyperparameters.warmup_steps"));
}

TEST(JobProtocolTest, FrozenWeightsOf16BitsInFp8AreNotForOlderWorkers) {
  JobSpec spec;
  spec.training.matmul = Matmul::kFp8;
  EXPECT_EQ(NeedOf(spec).protocol, 2);
  EXPECT_THAT(NeedOf(spec).keys, ElementsAre("training.matmul"));
  spec.training.use_qlora = true;
  spec.quantization.bits = 4;
  EXPECT_EQ(NeedOf(spec).protocol, 1);
}

TEST(JobProtocolTest, ServerOnlyKeysAndOldDefaultsNeedNoNewProtocol) {
  EXPECT_EQ(NeedOfText("[checkpoint]\nsave_strategy = \"no\"\n").protocol, 1);
  JobSpec spec;
  spec.compute.max_restarts = 99;
  spec.compute.unreachable_after = "1h";
  spec.compute.on_unreachable = OnUnreachable::kWait;
  EXPECT_EQ(NeedOf(spec).protocol, 1);
}

TEST(JobProtocolTest, KeysThatCameLaterAreLeftOutAndTheOthersStay) {
  const nlohmann::json job = ToJson(JobSpec());
  const nlohmann::json older = ForProtocol(JobSpec(), 1);
  EXPECT_FALSE(older["compute"].contains("hang_timeout"));
  EXPECT_FALSE(older["checkpoint"].contains("save_minutes"));
  EXPECT_FALSE(older["lora"].contains("modules_to_save"));
  EXPECT_EQ(older["quantization"], job["quantization"]);
  EXPECT_EQ(ForProtocol(JobSpec(), kProtocol), job);
  EXPECT_TRUE(FromJson(older).ok());
}

TEST(JobProtocolTest, ATableWithoutAKnownKeyIsLeftOutWhole) {
  EXPECT_TRUE(ToJson(JobSpec()).contains("scheduling"));
  EXPECT_FALSE(ForProtocol(JobSpec(), 1).contains("scheduling"));
}

TEST(JobProtocolTest, NoKeyComesFromAProtocolThatThisBuildDoesNotSpeak) {
  for (const Field* field : Fields()) EXPECT_LE(field->since, kProtocol) << field->key;
}

}  // namespace
}  // namespace sft::spec
