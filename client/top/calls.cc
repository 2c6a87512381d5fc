#include "client/top/calls.h"

namespace sft::client::top {

void Calls::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  if (current_ != nullptr) current_->TryCancel();
}

absl::Status Calls::With(const std::function<grpc::Status(grpc::ClientContext&)>& call) {
  grpc::ClientContext context;
  rpc::SetDeadline(context, kPatience);
  {
    MutexLock lock(mutex_);
    if (stopped_) return absl::CancelledError("stopped");
    current_ = &context;
  }
  const grpc::Status status = call(context);
  {
    MutexLock lock(mutex_);
    current_ = nullptr;
  }
  // What a person needs beside the code, without the advice on how to start a server.
  if (status.ok()) return absl::OkStatus();
  return rpc::FromGrpc(status);
}

}  // namespace sft::client::top
