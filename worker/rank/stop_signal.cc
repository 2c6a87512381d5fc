#include "worker/rank/stop_signal.h"

#include <csignal>

namespace sft::rank {
namespace {

volatile std::sig_atomic_t stop_signalled = 0;

void OnSignal(int) { stop_signalled = 1; }

}  // namespace

void CatchStopSignals() {
  struct sigaction action {};
  action.sa_handler = &OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

bool StopSignalled() { return stop_signalled != 0; }

}  // namespace sft::rank
