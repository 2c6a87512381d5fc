#pragma once

#include <grpcpp/grpcpp.h>

namespace sft::client {

// Handling of Ctrl-C and SIGTERM: they only cancel the call under way, so that a command can say
// how to come back. One per process; Install before the first thread is started.
class Interrupt {
 public:
  // Blocks the signals in this thread and those that it starts, and begins to wait for them.
  static void Install();
  // True after a signal.
  static bool Raised();

  // While this object lives, a signal cancels `context`; at once if one came already. Objects nest:
  // the innermost context is cancelled first, and each outer one as soon as the inner object is
  // gone.
  explicit Interrupt(grpc::ClientContext& context);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

 private:
  grpc::ClientContext* outer_ = nullptr;
};

}  // namespace sft::client
