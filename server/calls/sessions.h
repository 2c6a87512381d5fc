#pragma once

#include <google/protobuf/arena.h>
#include <grpcpp/grpcpp.h>

#include <array>
#include <memory>

#include "server/calls/call_queue.h"
#include "server/calls/grpc_methods.h"
#include "server/door/door.h"
#include "server/door/hands.h"
#include "server/fleet/worker_registry.h"
#include "sft/v1/worker_service.pb.h"

namespace sft::server {

// The streams of all workers. What they have to store is given to threads that may wait.
class Sessions {
 public:
  // `rule`: who may open one. Borrowed.
  Sessions(WorkerRegistry& registry, const Rule& rule) : registry_(registry), rule_(rule) {}

  // From when the server has started that was built with `methods`. All are borrowed.
  void Start(GrpcMethods& methods, Door& door, CallQueue& queue);
  // When the queue has no call left.
  void Stop();

 private:
  friend class Session;

  // Called by the queue's thread; valid until the next one. Null if the bytes are not a message.
  v1::WorkerMessage* Parse(grpc::ByteBuffer& bytes);

  WorkerRegistry& registry_;
  const Rule& rule_;
  GrpcMethods* methods_ = nullptr;
  Door* door_ = nullptr;
  CallQueue* queue_ = nullptr;
  std::unique_ptr<Hands> hands_;
  alignas(8) std::array<char, 16 << 10> block_;  // most messages need no more
  google::protobuf::Arena arena_{block_.data(), block_.size()};
};

}  // namespace sft::server
