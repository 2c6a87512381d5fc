#pragma once

#include <grpcpp/grpcpp.h>

namespace sft::client {

// Ctrl-C and SIGTERM end the call under way and nothing else, so that a command can say how to come
// back. One in a process; Install before the first thread is started.
class Interrupt {
 public:
  // Blocks the signals in this thread and those it starts, and begins to wait for them.
  static void Install();
  // Whether one has come.
  static bool Raised();

  // Cancels `context` when a signal comes, or at once if one came already; while this object lives.
  // They nest: the innermost is cancelled first, and those around it as soon as it is gone.
  explicit Interrupt(grpc::ClientContext& context);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

 private:
  grpc::ClientContext* outer_ = nullptr;
};

}  // namespace sft::client
