#include "server/door/lookers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>

namespace sft::server {
namespace {

class FakeTask final : public Lookers::Task {
 public:
  void Look() override {
    EXPECT_EQ(inside_.exchange(1), 0) << "two looks at once";
    EXPECT_GT(held, 0);
    if (during) during();
    inside_ = 0;
    const MutexLock lock(mutex_);
    ++looks_;
    changed_.NotifyAll();
  }
  void Hold() override { ++held; }
  void Release() override {
    const MutexLock lock(mutex_);
    --held;
    changed_.NotifyAll();
  }
  void WaitForLooks(int count) {
    const MutexLock lock(mutex_);
    while (looks_ < count || held > 0) changed_.Wait(mutex_);
    EXPECT_EQ(looks_, count);
  }

  std::atomic<int> held{0};
  std::function<void()> during;

 private:
  std::atomic<int> inside_{0};
  Mutex mutex_;
  CondVar changed_;
  int looks_ = 0;
};

class LookersTest : public testing::Test {
 protected:
  LookersTest() { lookers_.Start(); }
  ~LookersTest() override { lookers_.Stop(); }

  FakeClock clock_;
  FakeTask task_;  // outlives those who look
  Lookers lookers_{clock_};
};

TEST_F(LookersTest, WhoIsWokenIsLookedAt) {
  lookers_.Wake(task_);
  task_.WaitForLooks(1);
  lookers_.Wake(task_);
  task_.WaitForLooks(2);
}

TEST_F(LookersTest, WhoIsWokenDuringItsLookIsLookedAtOnceMore) {
  bool first = true;
  task_.during = [&] {
    if (!std::exchange(first, false)) return;
    for (int i = 0; i < 3; ++i) lookers_.Wake(task_);
  };
  lookers_.Wake(task_);
  task_.WaitForLooks(2);
}

TEST_F(LookersTest, WhoIsRemovedIsLookedAtNoMore) {
  task_.during = [&] {
    lookers_.Wake(task_);
    lookers_.Remove(task_);
    lookers_.Wake(task_);
  };
  lookers_.Wake(task_);
  task_.WaitForLooks(1);
  lookers_.Wake(task_);
  task_.WaitForLooks(1);
}

TEST_F(LookersTest, WhoRestsForTooLongIsLookedAtUnasked) {
  lookers_.Wake(task_);
  task_.WaitForLooks(1);
  clock_.Advance(Lookers::kUnasked - std::chrono::seconds(1));
  FakeTask other;
  other.during = [&] { lookers_.Remove(other); };
  lookers_.Wake(other);
  other.WaitForLooks(1);
  task_.WaitForLooks(1);
  clock_.Advance(std::chrono::seconds(1));
  task_.WaitForLooks(2);
}

TEST_F(LookersTest, ManyAreLookedAtAsOftenAsTheyWereWoken) {
  std::vector<std::unique_ptr<FakeTask>> tasks;
  for (int i = 0; i < 200; ++i) tasks.push_back(std::make_unique<FakeTask>());
  for (int round = 1; round <= 20; ++round) {
    for (const auto& task : tasks) lookers_.Wake(*task);
    for (const auto& task : tasks) task->WaitForLooks(round);
  }
  for (const auto& task : tasks) {
    task->during = [&] { lookers_.Remove(*task); };
    lookers_.Wake(*task);
    task->WaitForLooks(21);
  }
}

}  // namespace
}  // namespace sft::server
