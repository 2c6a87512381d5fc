#pragma once

#include <google/protobuf/arena.h>
#include <grpcpp/grpcpp.h>

#include <array>
#include <memory>
#include <thread>

#include "common/base/mutex.h"
#include "server/door/door.h"
#include "server/fleet/worker_registry.h"
#include "server/rpc/grpc_methods.h"
#include "server/rpc/hands.h"
#include "sft/v1/worker_service.pb.h"

namespace sft::server {

// The streams of all workers, on a queue of their own with one thread. As the only queue that is
// polled it also watches the sockets of the whole server: with a second polling thread the two
// would wake each other several times for each small message. So this thread never waits for
// anything else: what has to be stored is given to others.
class Sessions {
 public:
  // `rule`: who may open one. Borrowed.
  Sessions(WorkerRegistry& registry, const Rule& rule) : registry_(registry), rule_(rule) {}
  ~Sessions();

  // From when the server has started that was built with `methods` and `queue`. Methods and door
  // are borrowed.
  void Start(GrpcMethods& methods, Door& door, std::unique_ptr<grpc::ServerCompletionQueue> queue);
  // After the server's shutdown: returns when no stream is left.
  void Stop();

 private:
  friend class Session;

  void Loop();
  // Of thread_; valid until the next one. Null for what is no message.
  v1::WorkerMessage* Parse(grpc::ByteBuffer& bytes);
  void Count(int change) SFT_EXCLUDES(mutex_);

  WorkerRegistry& registry_;
  const Rule& rule_;
  GrpcMethods* methods_ = nullptr;
  Door* door_ = nullptr;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<Hands> hands_;
  alignas(8) std::array<char, 16 << 10> block_;  // most messages need no more
  google::protobuf::Arena arena_{block_.data(), block_.size()};

  Mutex mutex_;
  CondVar changed_;
  int count_ SFT_GUARDED_BY(mutex_) = 0;  // sessions, with the one that waits for its worker
  std::thread thread_;
};

}  // namespace sft::server
