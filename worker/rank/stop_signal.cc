#include "worker/rank/stop_signal.h"

#include <csignal>
#include <initializer_list>

namespace sft::rank {
namespace {

volatile std::sig_atomic_t stop_signalled = 0;

void OnSignal(int) { stop_signalled = 1; }

}  // namespace

void CatchStopSignals() {
  struct sigaction action {};
  action.sa_handler = &OnSignal;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGTERM, SIGINT}) {
    struct sigaction before {};
    if (sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    sigaction(number, &action, nullptr);
  }
}

bool StopSignalled() { return stop_signalled != 0; }

}  // namespace sft::rank
