#include "common/plan/schedule.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>

namespace sft::plan {
namespace {

using ::testing::HasSubstr;
using Orders = std::vector<std::vector<Action>>;

std::string Name(const ScheduleShape& shape) {
  return fmt::format("{} stages, {} micro-batches, {} pieces", shape.stages, shape.micro_batches,
                     shape.pieces);
}

void ForEachShape(const std::function<void(const ScheduleShape&)>& check) {
  for (const auto kind : {ScheduleKind::kOneForwardOneBackward, ScheduleKind::kForwardOnly}) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int pieces = 1; pieces <= 4; ++pieces) {
        for (int micro = 1; micro <= 32; ++micro) {
          check({.kind = kind, .stages = stages, .micro_batches = micro, .pieces = pieces});
        }
      }
    }
  }
}

TEST(ScheduleTest, EveryShapeHasAScheduleThatHoldsInEveryRespect) {
  ForEachShape([](const ScheduleShape& shape) {
    const auto schedule = MakeSchedule(shape);
    ASSERT_TRUE(schedule.ok()) << Name(shape) << ": " << schedule.status();
    const absl::Status checked = CheckSchedule(shape, *schedule);
    ASSERT_TRUE(checked.ok()) << Name(shape) << ": " << checked;
  });
}

TEST(ScheduleTest, TheBubbleOfOnePieceIsThatOfTheFormula) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int micro = 1; micro <= 32; ++micro) {
      const double expected = (stages - 1.0) / (micro + stages - 1.0);
      EXPECT_NEAR(*BubbleShare({.stages = stages, .micro_batches = micro}), expected, 1e-9)
          << stages << " " << micro;
    }
  }
}

TEST(ScheduleTest, PiecesDivideTheBubble) {
  for (int stages = 2; stages <= 8; ++stages) {
    for (int pieces = 2; pieces <= 4; ++pieces) {
      for (int micro = stages; micro <= 32; micro += stages) {
        const ScheduleShape shape{.stages = stages, .micro_batches = micro, .pieces = pieces};
        const double expected = (stages - 1.0) / (micro * pieces + stages - 1.0);
        EXPECT_NEAR(*BubbleShare(shape), expected, 1e-9) << Name(shape);
      }
    }
  }
}

TEST(ScheduleTest, TwoStagesAlternateAsTheyShould) {
  const auto schedule = MakeSchedule({.stages = 2, .micro_batches = 3});
  ASSERT_TRUE(schedule.ok());
  std::string text;
  for (const Action& action : (*schedule)[0]) {
    if (!action.is_message()) {
      text += fmt::format("{}{} ", action.kind == ActionKind::kForward ? "F" : "B", action.micro);
    }
  }
  EXPECT_EQ(text, "F0 F1 B0 F2 B1 B2 ");
}

TEST(ScheduleTest, AStageThatIsSlowerSetsThePace) {
  const ScheduleShape shape{.stages = 2, .micro_batches = 10};
  const auto schedule = MakeSchedule(shape);
  ASSERT_TRUE(schedule.ok());
  // Ten times the slow one, and once the way there and back of the other.
  EXPECT_NEAR(StepSeconds(shape, *schedule, {{1, 2}, {3, 6}}), 10 * 9 + 3, 1e-9);
}

void ForEachManyMicroBatches(const std::function<void(const ScheduleShape&)>& check) {
  for (const auto kind : {ScheduleKind::kOneForwardOneBackward, ScheduleKind::kForwardOnly}) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int pieces = 1; pieces <= 2; ++pieces) {
        for (const int micro : {200, 203, 600}) {
          check({.kind = kind, .stages = stages, .micro_batches = micro, .pieces = pieces});
        }
      }
    }
  }
}

TEST(ScheduleTest, ManyMicroBatchesTakeAsLongAsTheWholeScheduleDoes) {
  ForEachManyMicroBatches([](const ScheduleShape& shape) {
    std::vector<PieceTime> times(static_cast<size_t>(shape.all_pieces()));
    times.back() = {1.3, 2.7};  // the head
    const double all = StepSeconds(shape, *MakeSchedule(shape), times);
    EXPECT_NEAR(*PredictStepSeconds(shape, times) / all, 1, 1e-9) << Name(shape);
  });
}

// Where two stages are nearly as slow, the slower one may set the pace after hundreds only.
TEST(ScheduleTest, ManyMicroBatchesOfPiecesThatDifferTakeAboutAsLong) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> seconds(0.95, 1.05);
  ForEachManyMicroBatches([&](const ScheduleShape& shape) {
    std::vector<PieceTime> times;
    for (int piece = 0; piece < shape.all_pieces(); ++piece) {
      times.push_back({seconds(random), 2 * seconds(random)});
    }
    const double all = StepSeconds(shape, *MakeSchedule(shape), times);
    EXPECT_NEAR(*PredictStepSeconds(shape, times) / all, 1, 0.01) << Name(shape);
  });
}

TEST(ScheduleTest, ABillionMicroBatchesAreNotWorkedThrough) {
  constexpr int kBillion = 1'000'000'000;
  for (const int pieces : {1, 4}) {
    const ScheduleShape shape{.stages = 8, .micro_batches = kBillion, .pieces = pieces};
    EXPECT_NEAR(*BubbleShare(shape), 7.0 / (1e9 * pieces + 7), 1e-12) << Name(shape);
    EXPECT_EQ(MostInFlight(shape, 7), pieces == 1 ? 1 : 25) << Name(shape);
  }
}

// Each breaks a right schedule of four stages, and has to be found out.
struct Break {
  const char* name;
  std::function<void(Orders&)> apply;
  const char* says;
};

size_t Find(const std::vector<Action>& order, const Action& action) {
  return static_cast<size_t>(std::find(order.begin(), order.end(), action) - order.begin());
}

void Swap(std::vector<Action>& order, const Action& a, const Action& b) {
  std::swap(order[Find(order, a)], order[Find(order, b)]);
}

class BrokenScheduleTest : public testing::TestWithParam<Break> {};

TEST_P(BrokenScheduleTest, IsFoundOut) {
  const ScheduleShape shape{.stages = 4, .micro_batches = 6};
  auto schedule = MakeSchedule(shape);
  ASSERT_TRUE(schedule.ok());
  GetParam().apply(*schedule);
  EXPECT_THAT(CheckSchedule(shape, *schedule).ToString(), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    ScheduleTest, BrokenScheduleTest,
    testing::Values(
        Break{"SendsInAnotherOrder",
              [](Orders& s) {
                Swap(s[0], {ActionKind::kSendForward, 0, 0}, {ActionKind::kSendForward, 0, 1});
              },
              "waits for ever"},
        Break{"AMissingReceive",
              [](Orders& s) {
                s[1].erase(s[1].begin() + static_cast<std::ptrdiff_t>(
                                              Find(s[1], {ActionKind::kReceiveForward, 1, 2})));
              },
              "comes before what it reads"},
        Break{"BackwardsOutOfOrder",
              [](Orders& s) {
                Swap(s[3], {ActionKind::kBackward, 3, 0}, {ActionKind::kBackward, 3, 1});
              },
              "comes before its forward"},
        Break{"TheLastTwoBackwardsOutOfOrder",
              [](Orders& s) {
                // Both have all that they read by then.
                auto& last = s[0];
                std::erase(last, Action{ActionKind::kBackward, 0, 4});
                last.push_back({ActionKind::kBackward, 0, 4});
              },
              "is out of order"},
        Break{"AForwardTwice",
              [](Orders& s) {
                s[0].push_back({ActionKind::kForward, 0, 5});
              },
              "comes twice"},
        Break{"WorkOfAnotherStage",
              [](Orders& s) {
                s[0].push_back({ActionKind::kForward, 1, 5});
              },
              "is not its work"},
        Break{"WorkLeftOut",
              [](Orders& s) {
                std::erase(s[0], Action{ActionKind::kBackward, 0, 5});
              },
              "24 forwards and 23 backwards of 24"},
        Break{"TooMuchInFlight",
              [](Orders& s) {
                // All forwards of the first stage at once.
                std::stable_partition(s[0].begin(), s[0].end(), [](const Action& a) {
                  return a.kind == ActionKind::kForward;
                });
              },
              "in flight, more than"}),
    [](const auto& info) { return info.param.name; });

TEST(ScheduleTest, ShapesOfNothingAreRefused) {
  EXPECT_FALSE(MakeSchedule({.stages = 0}).ok());
  EXPECT_FALSE(MakeSchedule({.micro_batches = 0}).ok());
  EXPECT_FALSE(MakeSchedule({.pieces = 0}).ok());
  EXPECT_FALSE(BubbleShare({.stages = 0, .micro_batches = 100}).ok());
  EXPECT_FALSE(BubbleShare({.micro_batches = 0}).ok());
}

}  // namespace
}  // namespace sft::plan
