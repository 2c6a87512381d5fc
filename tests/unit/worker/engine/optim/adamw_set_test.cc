#include "worker/engine/optim/adamw_set.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

using at::Tensor;

constexpr int kSteps = 3;
constexpr double kRate = 1e-2;

Tensor Ramp(int64_t count, float first) {
  return at::arange(count, at::kFloat).mul(0.1F).add(first);
}

std::vector<OptimizerParam> Params() {
  std::vector<OptimizerParam> params;
  for (int i = 0; i < 3; ++i) {
    params.push_back(
        {.name = std::to_string(i), .weight = Ramp(10 + i, static_cast<float>(i) - 1), .id = i});
  }
  return params;
}

std::vector<Tensor> Gradients(int step) {
  std::vector<Tensor> gradients;
  for (int i = 0; i < 3; ++i) gradients.push_back(Ramp(10 + i, static_cast<float>(step - i)));
  return gradients;
}

const AdamWOptions kOptions = {.weight_decay = 0.5, .seed = 7};

TEST(AdamWSetTest, EachParameterIsUpdatedByItsRule) {
  const std::vector<UpdateRule> rules = {{.decays = true, .rate_ratio = 16.0},
                                         {.decays = false, .rate_ratio = 16.0},
                                         {.decays = true, .rate_ratio = 1.0}};
  const std::vector<OptimizerParam> params = Params(), one_by_one = Params();
  AdamWSet set(params, rules, kOptions), by_part(one_by_one, rules, kOptions);
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<Tensor> gradients = Gradients(step);
    set.Step(gradients, kRate, 0.5);
    by_part.BeginStep(kRate, 0.5);
    for (size_t i : {2, 0, 1}) by_part.StepParam(i, gradients[i], {});
  }
  const std::vector<OptimizerParam> expected = Params();
  for (size_t i = 0; i < rules.size(); ++i) {
    AdamWOptions options = kOptions;
    if (!rules[i].decays) options.weight_decay = 0.0;
    AdamW alone({expected[i]}, options);
    for (int step = 0; step < kSteps; ++step) {
      alone.Step(std::vector<Tensor>{Gradients(step)[i]}, kRate * rules[i].rate_ratio, 0.5);
    }
    EXPECT_TRUE(at::equal(params[i].weight, expected[i].weight)) << i;
    EXPECT_TRUE(at::equal(one_by_one[i].weight, expected[i].weight)) << i;
  }
  EXPECT_EQ(set.StateBytes(), 8 * (10 + 11 + 12));
}

TEST(AdamWSetTest, ARankWithoutPartsCountsSteps) {
  AdamWSet set({}, {}, kOptions);
  set.Step({}, kRate);
  ASSERT_EQ(set.All().size(), 1u);
  EXPECT_EQ(set.All()[0]->steps(), 1);
}

TEST(AdamWSetTest, RefusesGradientsOfOtherNumber) {
  AdamWSet set(Params(), std::vector<UpdateRule>(3), kOptions);
  EXPECT_THROW(set.Step({}, kRate), InternalError);
  EXPECT_THROW(AdamWSet(Params(), {}, kOptions), InternalError);
}

}  // namespace
}  // namespace sft::engine
