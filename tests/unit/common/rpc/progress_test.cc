#include "common/rpc/progress.h"

#include <gtest/gtest.h>

namespace sft::rpc {
namespace {

v1::Metric Step(int64_t step) {
  v1::Metric point;
  point.set_step(step);
  point.set_total_steps(10);
  point.set_loss(0.5);
  point.set_step_seconds(2);
  return point;
}

TEST(ProgressTest, AStepSaysWhatIsLeftAtItsPace) {
  v1::Progress progress;
  progress.set_phase("tokenise 1/2");
  progress.set_trainable_parameters(7);
  Advance(Step(4), progress);
  EXPECT_EQ(progress.step(), 4);
  EXPECT_EQ(progress.total_steps(), 10);
  EXPECT_EQ(progress.loss(), 0.5);
  EXPECT_EQ(progress.eta_seconds(), 12);
  EXPECT_EQ(progress.phase(), "");
  EXPECT_EQ(progress.trainable_parameters(), 7);
}

TEST(ProgressTest, AnEvaluationKeepsTheFiguresOfItsStep) {
  v1::Progress progress;
  Advance(Step(4), progress);
  v1::Metric eval;
  eval.set_step(4);
  eval.set_is_eval(true);
  eval.set_val_loss(0.25);
  Advance(eval, progress);
  EXPECT_TRUE(progress.has_val_loss());
  EXPECT_EQ(progress.val_loss(), 0.25);
  EXPECT_EQ(progress.loss(), 0.5);
  EXPECT_EQ(progress.eta_seconds(), 12);
}

TEST(ProgressTest, TrafficIsThatOfTheLastStepThatHasSome) {
  v1::Progress progress;
  v1::Metric step = Step(4);
  step.add_traffic()->set_axis("shard");
  Advance(step, progress);
  ASSERT_EQ(progress.traffic_size(), 1);
  Advance(Step(5), progress);
  EXPECT_EQ(progress.traffic_size(), 1);
  step.set_step(6);
  step.mutable_traffic(0)->set_axis("replicate");
  Advance(step, progress);
  ASSERT_EQ(progress.traffic_size(), 1);
  EXPECT_EQ(progress.traffic(0).axis(), "replicate");
}

TEST(ProgressTest, ValuesOfAnEvaluationStayUntilOneHasOthers) {
  v1::Progress progress;
  v1::Metric eval;
  eval.set_step(4);
  eval.set_is_eval(true);
  v1::NamedValue& value = *eval.add_values();
  value.set_name("val.rouge_l");
  value.set_value(34.5);
  Advance(eval, progress);
  eval.clear_values();
  eval.set_step(5);
  Advance(eval, progress);
  ASSERT_EQ(progress.values_size(), 1) << "not every validation answers rows";
  EXPECT_EQ(progress.values(0).value(), 34.5);
}

TEST(ProgressTest, WhatComesLateOrAfterTheLastStepDoesNoHarm) {
  v1::Progress progress;
  Advance(Step(11), progress);
  EXPECT_EQ(progress.eta_seconds(), 0) << "a step more than was planned";
  Advance(Step(3), progress);
  EXPECT_EQ(progress.step(), 11);
}

}  // namespace
}  // namespace sft::rpc
