#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/job_protocol.h"
#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;

Resolution Of(const std::string& loss, const std::string& rest = "") {
  return ResolveText(Minimal("[training]\nloss = \"" + loss + "\"\n" + rest));
}

TEST(PreferenceSpecTest, EachLossHasItsOwnDefaults) {
  const JobSpec sft = ResolveText(Minimal("")).spec;
  EXPECT_FALSE(sft.prefers());
  EXPECT_EQ(sft.hyperparameters.learning_rate, 2e-5);
  EXPECT_EQ(NeedOf(sft).protocol, 1) << "a job without preferences runs on older workers";
  const JobSpec dpo = Of("dpo").spec;
  EXPECT_TRUE(dpo.pairs() && dpo.has_reference());
  EXPECT_EQ(dpo.training.preference.beta, 0.1);
  EXPECT_EQ(dpo.hyperparameters.learning_rate, 5e-6);
  EXPECT_EQ(dpo.data.loss_on, LossOn::kAssistant);
  EXPECT_EQ(NeedOf(dpo).protocol, 2);
  EXPECT_EQ(Of("dpo", "mode = \"full_finetune\"").spec.hyperparameters.learning_rate, 1e-6);
  const JobSpec simpo = Of("simpo").spec;
  EXPECT_FALSE(simpo.has_reference());
  EXPECT_EQ(simpo.training.preference.beta, 2.0);
  EXPECT_EQ(simpo.training.preference.simpo_gamma, 1.0);
  EXPECT_EQ(Of("orpo").spec.data.loss_on, LossOn::kAll);
  const JobSpec kto = Of("kto").spec;
  EXPECT_TRUE(kto.prefers() && kto.has_reference());
  EXPECT_FALSE(kto.pairs());
}

struct Refused {
  const char* name;
  const char* loss;
  const char* rest;
  const char* key;
  const char* message;

  friend void PrintTo(const Refused& refused, std::ostream* out) { *out << refused.name; }
};

class PreferenceRefusal : public testing::TestWithParam<Refused> {};

TEST_P(PreferenceRefusal, NamesTheKey) {
  const Resolution r = Of(GetParam().loss, GetParam().rest);
  ASSERT_EQ(r.problems.size(), 1u) << r.problems[0].message;
  EXPECT_EQ(r.problems[0].key, GetParam().key);
  EXPECT_THAT(r.problems[0].message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Files, PreferenceRefusal,
    testing::Values(
        Refused{"BetaOfSft", "sft", "[training.preference]\nbeta = 0.1", "training.preference.beta",
                "is for dpo, orpo, simpo, kto"},
        Refused{"GammaOfDpo", "dpo", "[training.preference]\nsimpo_gamma = 1",
                "training.preference.simpo_gamma", "is for simpo"},
        Refused{"SftWeightOfOrpo", "orpo", "[training.preference]\nsft_weight = 1",
                "training.preference.sft_weight", "is for dpo, simpo"},
        Refused{"SmoothingWithoutRobust", "dpo", "[training.preference]\nlabel_smoothing = 0.1",
                "training.preference.label_smoothing", "dpo_loss = \"robust\""},
        Refused{"RobustWithoutSmoothing", "dpo", "[training.preference]\ndpo_loss = \"robust\"",
                "training.preference.dpo_loss", "needs label_smoothing"},
        Refused{"Packing", "dpo", "[data]\npacking = true", "data.packing", "one row"},
        Refused{"Dropout", "simpo", "[lora]\ndropout = 0.05", "lora.dropout", "without noise"},
        Refused{"Noise", "kto", "[hyperparameters]\nneftune_noise_alpha = 5",
                "hyperparameters.neftune_noise_alpha", "without noise"},
        Refused{"Split", "dpo", "[data]\non_long_rows = \"split\"", "data.on_long_rows",
                "truncate_left"},
        Refused{"LossOnAll", "dpo", "[data]\nloss_on = \"all\"", "data.loss_on", "only answers"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sft::spec
