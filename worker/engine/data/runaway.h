#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

namespace sft::engine {

// A chat template, tokenizer or row that takes more of the machine than any honest one. It is found
// where no exception can be thrown: in the allocator of the tokenizer crate, on a stack that is
// used up, or by the thread that watches for a row that does not end. It ends the process.
struct Runaway {
  enum class Kind {
    kCallMemory,  // one call took `amount` bytes, more than it may
    kNoMemory,    // the system refused `amount` bytes
    kStack,       // the stack is used up
    kTime,        // the row has taken `amount` seconds of processor time
  };
  Kind kind = Kind::kCallMemory;
  std::string_view what;  // "the chat template", "the tokenizer"; empty: not known
  int64_t line = 0;       // of the data file, from 1; 0: none was in work
  int64_t amount = 0;
};

// Says why and ends the process: it must not return. For kStack it runs as a signal handler, where
// only async-signal-safe calls are allowed. Without one the process says it on standard error and
// aborts.
using RunawayHandler = void (*)(const Runaway&);
void SetRunawayHandler(RunawayHandler handler);
[[noreturn]] void EndAsRunaway(const Runaway& runaway);

// Room for the handler beside the stack of the thread that makes it, for as long as it lives.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  std::unique_ptr<char[]> memory_;
};

// The line of the data file that this thread is at, for what may happen to it.
void SetLineInWork(int64_t line);

}  // namespace sft::engine
