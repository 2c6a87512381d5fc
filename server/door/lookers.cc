#include "server/door/lookers.h"

#include "common/obs/log.h"

namespace sft::server {

void Lookers::Start() {
  for (int i = 0; i < kThreads; ++i) {
    threads_.emplace_back([this] {
      obs::NameThread("looker");
      Loop();
    });
  }
}

void Lookers::Stop() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Lookers::Wake(Task& task) {
  using State = Task::State;
  const MutexLock lock(mutex_);
  if (task.state_ == State::kLooking) task.state_ = State::kLookingAgain;
  if (task.state_ == State::kResting) resting_.erase(task.place_);
  if (task.state_ != State::kResting && task.state_ != State::kNew) return;
  task.Hold();
  Queue(task);
}

void Lookers::Remove(Task& task) {
  const MutexLock lock(mutex_);
  task.state_ = Task::State::kRemoved;
}

void Lookers::Queue(Task& task) {
  task.state_ = Task::State::kQueued;
  queued_.push_back(&task);
  if (idle_ > 0) changed_.NotifyOne();
}

void Lookers::QueueOverdue() {
  const MonoTime now = clock_.Mono();
  while (!resting_.empty() && now - resting_.front()->rests_since_ >= kUnasked) {
    Task& task = *resting_.front();
    resting_.pop_front();
    task.Hold();
    Queue(task);
  }
}

bool Lookers::Rest(Task& task) {
  if (task.state_ == Task::State::kLookingAgain) {
    Queue(task);
    return false;
  }
  if (task.state_ == Task::State::kRemoved) return true;
  task.state_ = Task::State::kResting;
  task.rests_since_ = clock_.Mono();
  task.place_ = resting_.insert(resting_.end(), &task);
  return true;
}

void Lookers::Loop() {
  while (true) {
    Task* task = nullptr;
    {
      const MutexLock lock(mutex_);
      QueueOverdue();
      while (queued_.empty() && !closing_) {
        ++idle_;
        if (resting_.empty()) {
          changed_.Wait(mutex_);
        } else {
          changed_.WaitFor(mutex_, kUnasked / 4);
        }
        --idle_;
        QueueOverdue();
      }
      if (queued_.empty()) return;
      task = queued_.front();
      queued_.pop_front();
      task->state_ = Task::State::kLooking;
    }
    task->Look();
    bool release = false;
    {
      const MutexLock lock(mutex_);
      release = Rest(*task);
    }
    if (release) task->Release();
  }
}

}  // namespace sft::server
