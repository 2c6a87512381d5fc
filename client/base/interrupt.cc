#include "client/base/interrupt.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "common/base/mutex.h"

namespace sft::client {
namespace {

std::atomic<bool> raised{false};
Mutex mutex;
grpc::ClientContext* current SFT_GUARDED_BY(mutex) = nullptr;

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

void Interrupt::Install() {
  const sigset_t set = Signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread([set] {
    int signal = 0;
    sigwait(&set, &signal);
    raised = true;
    {
      MutexLock lock(mutex);
      if (current != nullptr) current->TryCancel();
    }
    // A second signal ends the process at once.
    sigwait(&set, &signal);
    _exit(130);
  }).detach();
}

bool Interrupt::Raised() { return raised; }

Interrupt::Interrupt(grpc::ClientContext& context) {
  MutexLock lock(mutex);
  outer_ = current;
  current = &context;
  if (raised) context.TryCancel();
}

Interrupt::~Interrupt() {
  MutexLock lock(mutex);
  current = outer_;
  if (raised && current != nullptr) current->TryCancel();
}

}  // namespace sft::client
