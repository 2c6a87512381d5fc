#include "worker/channel/event.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sft::channel {
namespace {

template <typename Body>
Body RoundTrip(const Body& body) {
  const std::string line = ToLine({1700000000.125, body});
  EXPECT_EQ(line.back(), '\n');
  EXPECT_EQ(line.find('\n'), line.size() - 1) << "one line";
  const absl::StatusOr<Event> event = ParseLine(line);
  EXPECT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(event->time, 1700000000.125);
  return std::get<Body>(event->body);
}

TEST(EventTest, AStepComesBackWithEveryMember) {
  StepEvent step;
  step.step = 7;
  step.total_steps = 3'000'000'000;
  step.loss = 0.1 + 0.2;
  step.lr = 2e-5;
  step.grad_norm = 1e-300;
  step.tokens = 4096;
  step.tokens_per_second = 12345.678;
  step.seconds = 0.25;
  step.gpu_memory_bytes = 80'000'000'000;
  step.mfu = 0.41;
  step.of_limit = 0.87;
  step.epoch = 1.5;
  EXPECT_TRUE(std::isnan(RoundTrip(step).rank_loss));
  step.rank_loss = 0.375;
  EXPECT_TRUE(RoundTrip(step).preference.empty());
  EXPECT_TRUE(RoundTrip(step).traffic.empty());
  step.traffic = {{"shard", 0.125, 41.5}, {"replicate", 0.01, 3}};
  step.preference = {{.rewards_chosen = 0.1,
                      .rewards_rejected = -0.2,
                      .rewards_accuracies = 0.75,
                      .logps_chosen = -30.5,
                      .logps_rejected = -40.25,
                      .kl = 0.5}};
  const StepEvent back = RoundTrip(step);
  EXPECT_EQ(back.step, 7);
  EXPECT_EQ(back.total_steps, 3'000'000'000);
  EXPECT_EQ(back.loss, 0.1 + 0.2);
  EXPECT_EQ(back.lr, 2e-5);
  EXPECT_EQ(back.grad_norm, 1e-300);
  EXPECT_EQ(back.tokens, 4096);
  EXPECT_EQ(back.tokens_per_second, 12345.678);
  EXPECT_EQ(back.seconds, 0.25);
  EXPECT_EQ(back.gpu_memory_bytes, 80'000'000'000);
  EXPECT_EQ(back.mfu, 0.41);
  EXPECT_EQ(back.of_limit, 0.87);
  EXPECT_EQ(back.epoch, 1.5);
  ASSERT_EQ(back.traffic.size(), 2u);
  EXPECT_EQ(back.traffic[0].axis, "shard");
  EXPECT_EQ(back.traffic[0].exposed_share, 0.125);
  EXPECT_EQ(back.traffic[0].gigabytes_per_second, 41.5);
  EXPECT_EQ(back.traffic[1].axis, "replicate");
  EXPECT_EQ(back.rank_loss, 0.375);
  ASSERT_EQ(back.preference.size(), 1u);
  EXPECT_EQ(back.preference[0].rewards_chosen, 0.1);
  EXPECT_EQ(back.preference[0].rewards_rejected, -0.2);
  EXPECT_EQ(back.preference[0].rewards_accuracies, 0.75);
  EXPECT_EQ(back.preference[0].logps_chosen, -30.5);
  EXPECT_EQ(back.preference[0].logps_rejected, -40.25);
  EXPECT_EQ(back.preference[0].kl, 0.5);
}

TEST(EventTest, FloatingPointIsTheShortestTextThatReadsBackEqual) {
  const std::string line = ToLine({0.1, StepEvent{.loss = 0.3}});
  EXPECT_NE(line.find("\"time\":0.1,"), std::string::npos) << line;
  EXPECT_NE(line.find("\"loss\":0.3,"), std::string::npos) << line;
}

TEST(EventTest, NonFiniteValuesAreStrings) {
  StepEvent step;
  step.loss = std::numeric_limits<double>::quiet_NaN();
  step.grad_norm = std::numeric_limits<double>::infinity();
  step.lr = -std::numeric_limits<double>::infinity();
  EXPECT_NE(ToLine({0, step}).find("\"loss\":\"nan\""), std::string::npos);
  const StepEvent back = RoundTrip(step);
  EXPECT_TRUE(std::isnan(back.loss));
  EXPECT_EQ(back.grad_norm, step.grad_norm);
  EXPECT_EQ(back.lr, step.lr);
}

TEST(EventTest, EveryKindOfEventComesBack) {
  EXPECT_EQ(RoundTrip(ProgressEvent{"tokenise", 120, 150}).done, 120);
  EXPECT_TRUE(RoundTrip(PreparedEvent{.rows = 4, .skipped = 1, .from_cache = true}).from_cache);
  const PreparedEvent prepared =
      RoundTrip(PreparedEvent{.skipped_by = {{"too long", 2}}, .skipped_tokens = 130});
  ASSERT_EQ(prepared.skipped_by.size(), 1u);
  EXPECT_EQ(prepared.skipped_by[0].reason, "too long");
  EXPECT_EQ(prepared.skipped_by[0].rows, 2);
  EXPECT_EQ(prepared.skipped_tokens, 130);
  EXPECT_EQ(RoundTrip(ReadyEvent{.rank = 3, .world = 8, .device = "cuda:0 NVIDIA H100"}).device,
            "cuda:0 NVIDIA H100");
  EXPECT_EQ(RoundTrip(EvalEvent{.step = 5, .loss = 1.25}).loss, 1.25);
  const EvalEvent eval = RoundTrip(
      EvalEvent{.metrics = {{"val.rouge_l", 12.5}, {"val.exact_match", 0}}, .answered_rows = 200});
  ASSERT_EQ(eval.metrics.size(), 2u);
  EXPECT_EQ(eval.metrics[0].name, "val.rouge_l");
  EXPECT_EQ(eval.metrics[0].value, 12.5);
  EXPECT_EQ(eval.answered_rows, 200);
  // That of a release before.
  const auto older = ParseLine(R"({"event":"eval","time":1,"step":5,"loss":2})");
  ASSERT_TRUE(older.ok()) << older.status();
  EXPECT_TRUE(std::get<EvalEvent>(older->body).metrics.empty());
  EXPECT_TRUE(RoundTrip(ConsistencyEvent{1, "aa", "bb", true}).consistent);
  const ConsistencyEvent checked =
      RoundTrip(ConsistencyEvent{.packing_seconds = 0.25, .delivered_seconds = 1.5});
  EXPECT_EQ(checked.packing_seconds, 0.25);
  EXPECT_EQ(checked.delivered_seconds, 1.5);
  EXPECT_EQ(RoundTrip(ArtifactEvent{"adapter", "/a b/output", 9}).path, "/a b/output");
  const CheckpointEvent saved = RoundTrip(CheckpointEvent{
      .step = 500, .path = "/c/step-500", .reason = "time", .metric = 1.5, .has_metric = true});
  EXPECT_EQ(saved.path, "/c/step-500");
  EXPECT_EQ(saved.metric, 1.5);
  EXPECT_EQ(RoundTrip(ResumedEvent{500, "/c/step-500", {"data"}}).changes.size(), 1u);
  EXPECT_EQ(RoundTrip(FatalEvent{"user", "nan_loss", "line 3:\n\"x\"", "try"}).message,
            "line 3:\n\"x\"");
}

TEST(EventTest, TextThatIsNotUtf8DoesNotBreakTheLine) {
  EXPECT_EQ(RoundTrip(FatalEvent{"user", "c",
                                 "a\xff"
                                 "b",
                                 ""})
                .message,
            "a\xEF\xBF\xBD"
            "b");
}

TEST(EventTest, AnUnknownEventIsNotFoundSoThatItCanBeSkipped) {
  EXPECT_TRUE(absl::IsNotFound(ParseLine(R"({"event":"applause","loudness":3})").status()));
}

TEST(EventTest, UnknownMembersAreSkippedAndAbsentOnesKeepTheirDefault) {
  const absl::StatusOr<Event> event = ParseLine(R"({"event":"ready","novelty":[1],"rank":2})");
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(std::get<ReadyEvent>(event->body).rank, 2);
  EXPECT_EQ(std::get<ReadyEvent>(event->body).world, 1);
}

class HostileLine : public testing::TestWithParam<const char*> {};

TEST_P(HostileLine, IsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(ParseLine(GetParam()).status()))
      << ParseLine(GetParam()).status();
}

INSTANTIATE_TEST_SUITE_P(
    Lines, HostileLine,
    testing::Values("", "{", "null", "[]", "\"step\"", "{}", R"({"event":7})", R"({"event":"step")",
                    R"({"event":"step","step":1.5})", R"({"event":"step","step":"1"})",
                    R"({"event":"step","step":99999999999999999999})",
                    R"({"event":"ready","rank":4294967296})",
                    R"({"event":"ready","rank":-2147483649})", R"({"event":"step","loss":"NaN"})",
                    R"({"event":"step","loss":NaN})", R"({"event":"step","loss":null})",
                    R"({"event":"prepared","from_cache":1})",
                    R"({"event":"fatal","message":["x"]})",
                    R"({"event":"step"} {"event":"step"})"));

TEST(EventTest, ALineOverOneMebibyteIsRefusedWithItsSize) {
  const std::string line = ToLine({0, FatalEvent{"user", "c", std::string(2 << 20, 'x'), ""}});
  EXPECT_TRUE(absl::IsInvalidArgument(ParseLine(line).status()));
}

TEST(EventTest, DeepNestingDoesNotExhaustTheStack) {
  EXPECT_FALSE(ParseLine("{\"event\":" + std::string(500'000, '[')).ok());
}

}  // namespace
}  // namespace sft::channel
