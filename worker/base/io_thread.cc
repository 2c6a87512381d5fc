#include "worker/base/io_thread.h"

#include "common/obs/log.h"

namespace sft::worker {

IoThread::IoThread(const std::string& name, std::function<Nanos()> work)
    : work_(std::move(work)), thread_([this, name] {
        obs::NameThread(name);
        Loop();
      }) {}

IoThread::~IoThread() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void IoThread::Wake() {
  const MutexLock lock(mutex_);
  woken_ = true;
  changed_.NotifyAll();
}

void IoThread::Loop() {
  while (true) {
    const Nanos wait = work_();
    const MutexLock lock(mutex_);
    // A spurious wake-up costs one early call of `work`.
    if (!woken_ && !ending_ && wait > Nanos(0)) changed_.WaitFor(mutex_, wait);
    woken_ = false;
    if (ending_) return;
  }
}

}  // namespace sft::worker
