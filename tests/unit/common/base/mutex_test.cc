#include "common/base/mutex.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace sft {
namespace {

TEST(MutexTest, OneThreadAtATime) {
  Mutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10000; ++i) {
        MutexLock lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 40000);
}

TEST(CondVarTest, AWaiterSeesWhatTheNotifierWrote) {
  Mutex mutex;
  CondVar ready;
  bool done = false;
  int value = 0;
  std::thread writer([&] {
    MutexLock lock(mutex);
    value = 7;
    done = true;
    ready.NotifyAll();
  });
  {
    MutexLock lock(mutex);
    while (!done) ready.Wait(mutex);
    EXPECT_EQ(value, 7);
  }
  writer.join();
}

TEST(CondVarTest, AWaitWithoutNotificationEnds) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(mutex);
  EXPECT_FALSE(never.WaitFor(mutex, std::chrono::nanoseconds(1)));
}

}  // namespace
}  // namespace sft
