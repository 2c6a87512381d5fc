#include "server/door/hands.h"

#include <utility>

#include "common/obs/log.h"

namespace sft::server {

Hands::Hands(int count, const std::string& name) {
  for (int i = 0; i < count; ++i) {
    threads_.emplace_back([this, name] {
      obs::NameThread(name);
      Loop();
    });
  }
}

void Hands::Give(std::function<void()> work) {
  {
    const MutexLock lock(mutex_);
    waiting_.push_back(std::move(work));
  }
  changed_.NotifyOne();
}

void Hands::Stop() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Hands::Loop() {
  while (true) {
    std::function<void()> work;
    {
      const MutexLock lock(mutex_);
      while (waiting_.empty() && !closing_) changed_.Wait(mutex_);
      if (waiting_.empty()) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work();
  }
}

}  // namespace sft::server
