#include "worker/engine/train/best_tracker.h"

#include <gtest/gtest.h>

namespace sft::engine {
namespace {

spec::JobSpec::Training::Validation Options(int patience, double threshold = 0,
                                            bool greater = false) {
  spec::JobSpec::Training::Validation options;
  options.early_stopping_patience = patience;
  options.early_stopping_threshold = threshold;
  options.greater_is_better = greater;
  return options;
}

TEST(BestTrackerTest, TheLeastIsTheBestAndAnEqualOneIsNot) {
  BestTracker tracker(Options(0));
  EXPECT_FALSE(tracker.best());
  EXPECT_TRUE(tracker.Add(1, 2.0));
  EXPECT_FALSE(tracker.Add(2, 2.0));
  EXPECT_TRUE(tracker.Add(3, 1.5));
  EXPECT_FALSE(tracker.Add(4, 1.7));
  EXPECT_EQ(tracker.best(), 1.5);
  EXPECT_EQ(tracker.best_step(), 3);
  EXPECT_FALSE(tracker.hopeless());
}

TEST(BestTrackerTest, TheGreatestIsTheBestWhereTheJobSaysSo) {
  BestTracker tracker(Options(0, 0, /*greater=*/true));
  EXPECT_TRUE(tracker.Add(1, 2.0));
  EXPECT_FALSE(tracker.Add(2, 1.0));
  EXPECT_TRUE(tracker.Add(3, 3.0));
  EXPECT_EQ(tracker.best_step(), 3);
}

TEST(BestTrackerTest, PatienceCountsValidationsInARow) {
  BestTracker tracker(Options(2));
  tracker.Add(1, 2.0);
  tracker.Add(2, 2.1);
  tracker.Add(3, 1.9);
  tracker.Add(4, 2.0);
  EXPECT_FALSE(tracker.hopeless());
  tracker.Add(5, 1.95);
  EXPECT_TRUE(tracker.hopeless());
  EXPECT_EQ(tracker.best_step(), 3);
}

TEST(BestTrackerTest, AGainWithinTheThresholdIsTheBestButNoHope) {
  BestTracker tracker(Options(1, 0.1));
  tracker.Add(1, 2.0);
  EXPECT_TRUE(tracker.Add(2, 1.95));
  EXPECT_TRUE(tracker.hopeless());
  EXPECT_EQ(tracker.best_step(), 2);
}

TEST(BestTrackerTest, ARestoredTrackerGoesOnCounting) {
  BestTracker tracker(Options(2));
  tracker.Restore(1.0, 7, 1);
  EXPECT_FALSE(tracker.Add(8, 1.5));
  EXPECT_TRUE(tracker.hopeless());
  EXPECT_EQ(tracker.best_step(), 7);
}

}  // namespace
}  // namespace sft::engine
