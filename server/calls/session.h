#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/async_stream.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "common/base/mutex.h"
#include "server/calls/queued_call.h"
#include "server/door/call_context.h"
#include "server/fleet/worker_registry.h"
#include "sft/v1/worker_service.pb.h"

namespace sft::server {

class Sessions;

// One worker's stream. Messages are handled one at a time; writes go through a bounded queue, one
// in flight. The registry holds the link, which outlives it and then sends nothing.
class Session final : public QueuedCall {
 public:
  // A worker that takes nothing is cut off at this many waiting messages: it comes back and gets
  // one desired set.
  static constexpr size_t kMaxQueue = 256;

  // Waits for the next worker that dials.
  static void Accept(Sessions& sessions);
  ~Session() override;

 private:
  // What other threads send through. `session` is null once the stream has ended.
  class Link final : public WorkerLink {
   public:
    explicit Link(Session* session) : session_(session) {}
    void Send(const v1::ServerMessage& message) override;
    void Close(const absl::Status& why) override;
    void Detach();

   private:
    Mutex mutex_;
    Session* session_ SFT_GUARDED_BY(mutex_);
  };

  explicit Session(Sessions& sessions);

  void OnAccepted(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  // The stream is over, whoever ended it.
  void OnEnded();

  void Register(const v1::Register& message);
  void Observe(const v1::Observed& observed);
  // Goes on reading, or ends the stream.
  void Handled(const absl::Status& handled);
  void Read() SFT_EXCLUDES(mutex_);
  // The first message of every session; what is enqueued before it waits for it.
  void Welcome(const v1::ServerMessage& message);
  void Enqueue(const v1::ServerMessage& message);
  void Write() SFT_REQUIRES(mutex_);
  void FinishOnce(const grpc::Status& status);
  void Finish() SFT_REQUIRES(mutex_);

  Sessions& sessions_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_;
  const std::shared_ptr<Link> link_;
  Event accepted_, read_, written_, finish_, ended_;

  // Touched by reads alone, which do not overlap.
  grpc::ByteBuffer incoming_;
  CallOrigin origin_;
  std::optional<CallContext> call_;
  std::string node_;       // empty before Register was accepted
  std::string certified_;  // the only node that it may be; empty: any

  Mutex mutex_;
  std::deque<grpc::ByteBuffer> queue_ SFT_GUARDED_BY(mutex_);  // front: in flight
  bool welcomed_ SFT_GUARDED_BY(mutex_) = false;
  bool finishing_ SFT_GUARDED_BY(mutex_) = false;  // Finish when the queue has drained
  bool finished_ SFT_GUARDED_BY(mutex_) = false;   // nothing may be begun any more
  grpc::Status final_status_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
