#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "server/core/worker_registry.h"
#include "sft/v1/worker_service.grpc.pb.h"

namespace sft::server {

// One worker's stream. Reads are handled one at a time in gRPC's threads; writes go through a
// bounded queue, one in flight. The reactor deletes itself when the stream is done; the registry
// holds the link, which outlives it and then sends nothing.
class SessionReactor final : public grpc::ServerBidiReactor<v1::WorkerMessage, v1::ServerMessage> {
 public:
  // A worker that takes nothing is cut off at this many waiting messages: it comes back and gets
  // one desired set.
  static constexpr size_t kMaxQueue = 256;

  static SessionReactor* Make(WorkerRegistry& registry, grpc::CallbackServerContext* context);

 private:
  // What other threads send through. `reactor` is null once the stream has ended.
  class Link final : public WorkerLink {
   public:
    explicit Link(SessionReactor* reactor) : reactor_(reactor) {}
    void Send(const v1::ServerMessage& message) override;
    void Close(const absl::Status& why) override;
    void Detach();

   private:
    Mutex mutex_;
    SessionReactor* reactor_ SFT_GUARDED_BY(mutex_);
  };

  SessionReactor(WorkerRegistry& registry, grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  absl::Status Handle();
  // The first message of every session; what is enqueued before it waits for it.
  void Welcome(const v1::ServerMessage& message);
  void Enqueue(const v1::ServerMessage& message);
  void FinishOnce(const grpc::Status& status);

  WorkerRegistry& registry_;
  grpc::CallbackServerContext* const context_;
  const std::shared_ptr<Link> link_;

  // Touched by reads alone, which do not overlap.
  v1::WorkerMessage incoming_;
  std::string node_;       // empty before Register was accepted
  std::string certified_;  // the only node that it may be; empty: any

  Mutex mutex_;
  std::deque<v1::ServerMessage> queue_ SFT_GUARDED_BY(mutex_);  // front: in flight
  bool welcomed_ SFT_GUARDED_BY(mutex_) = false;
  bool finishing_ SFT_GUARDED_BY(mutex_) = false;  // Finish when the queue has drained
  bool finished_ SFT_GUARDED_BY(mutex_) = false;
  grpc::Status final_status_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
