#include "worker/base/task_threads.h"

#include <utility>

#include "common/obs/log.h"

namespace sft::worker {

TaskThreads::~TaskThreads() {
  std::list<Running> running;
  {
    const MutexLock lock(mutex_);
    running.swap(running_);
  }
  for (Running& each : running) each.thread.join();
}

void TaskThreads::Reap() {
  for (auto each = running_.begin(); each != running_.end();) {
    if (!each->done) {
      ++each;
      continue;
    }
    each->thread.join();
    each = running_.erase(each);
  }
}

void TaskThreads::Start(size_t most, std::function<void(size_t others)> task) {
  const MutexLock lock(mutex_);
  Reap();
  const size_t others = running_.size();
  if (others > most) return;
  Running& running = running_.emplace_back();
  running.thread = std::thread([this, task = std::move(task), others, &running] {
    obs::NameThread(name_);
    task(others);
    const MutexLock done(mutex_);
    running.done = true;
  });
}

}  // namespace sft::worker
