#include "worker/engine/data/runaway.h"

#include <pthread.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "worker/engine/data/ffi.h"

namespace sft::engine {
namespace {

constexpr size_t kSignalStackBytes = 64 << 10;
// How far from the end of the stack a fault is one of a stack that is used up: a frame may be
// larger than the guard.
constexpr uintptr_t kNearEnd = 256 << 10;

std::atomic<RunawayHandler> g_handler = nullptr;
thread_local int64_t t_line = 0;
thread_local uintptr_t t_stack_end = 0;  // 0: this thread has no SignalStack

extern "C" void OnCrateMemory(int32_t refused, const char* what, size_t what_size, size_t bytes) {
  EndAsRunaway({.kind = refused != 0 ? Runaway::Kind::kNoMemory : Runaway::Kind::kCallMemory,
                .what = {what, what_size},
                .line = t_line,
                .amount = static_cast<int64_t>(bytes)});
}

extern "C" void OnFault(int number, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (t_stack_end != 0 && address < t_stack_end + kNearEnd && address + kNearEnd > t_stack_end) {
    EndAsRunaway({.kind = Runaway::Kind::kStack, .line = t_line});
  }
  signal(number, SIG_DFL);  // the instruction runs again, and ends the process as it would have
}

}  // namespace

void SetRunawayHandler(RunawayHandler handler) {
  g_handler = handler;
  sft_set_memory_handler(&OnCrateMemory);
  struct sigaction action = {};
  action.sa_sigaction = &OnFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
}

void EndAsRunaway(const Runaway& runaway) {
  if (const RunawayHandler handler = g_handler; handler != nullptr) handler(runaway);
  std::abort();
}

SignalStack::SignalStack() {
  if (t_stack_end != 0) return;  // the thread has one
  memory_ = std::make_unique<char[]>(kSignalStackBytes);
  stack_t stack = {};
  stack.ss_sp = memory_.get();
  stack.ss_size = kSignalStackBytes;
  sigaltstack(&stack, nullptr);
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
  void* address = nullptr;
  size_t size = 0;
  pthread_attr_getstack(&attributes, &address, &size);
  pthread_attr_destroy(&attributes);
  t_stack_end = reinterpret_cast<uintptr_t>(address);
}

SignalStack::~SignalStack() {
  if (memory_ == nullptr) return;
  t_stack_end = 0;
  stack_t none = {};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
}

void SetLineInWork(int64_t line) { t_line = line; }

}  // namespace sft::engine
