#include "server/rpc/sessions.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <utility>

#include "common/obs/log.h"
#include "server/rpc/session.h"

namespace sft::server {
namespace {

// Commits are made in groups: so many reports can wait for one.
constexpr int kHands = 8;

// The heartbeats of a thousand idle nodes come one by one, each some milliseconds after the other,
// and to be woken for one costs more than to take it in. So while that is all there is to do, the
// thread rests after it has taken what there was. It is how much later the server may see what is
// new then on a connection that it has: a call, a report. Who dials wakes it, for the while in
// which the connection is made and used first.
constexpr std::chrono::milliseconds kRest{40};
// A look takes one thing from the sockets, which need not be an event.
constexpr int kLooks = 3;

}  // namespace

Sessions::~Sessions() { Stop(); }

void Sessions::Start(GrpcMethods& methods, Door& door,
                     std::unique_ptr<grpc::ServerCompletionQueue> queue, int port) {
  methods_ = &methods;
  door_ = &door;
  doorbell_ = std::make_unique<Doorbell>(port);
  queue_ = std::move(queue);
  hands_ = std::make_unique<Hands>(kHands);
  Session::Accept(*this);
  thread_ = std::thread([this] {
    obs::NameThread("poller");
    Loop();
  });
}

void Sessions::Stop() {
  if (queue_ == nullptr) return;
  {
    const MutexLock lock(mutex_);
    while (count_ > 0) changed_.Wait(mutex_);
  }
  hands_->Stop();
  queue_->Shutdown();
  thread_.join();
  queue_.reset();
}

void Sessions::Loop() {
  void* tag = nullptr;
  bool ok = false;
  while (Next(tag, ok)) static_cast<Session::Event*>(tag)->Happen(ok);
}

bool Sessions::Next(void*& tag, bool& ok) {
  if (may_rest_ && door_->gate().Quiet()) {
    for (int i = 0; i < kLooks; ++i) {
      const auto next = queue_->AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
      if (next != grpc::CompletionQueue::TIMEOUT) return next == grpc::CompletionQueue::GOT_EVENT;
    }
    if (doorbell_->Rings(kRest)) door_->gate().Count(0);
  }
  may_rest_ = false;
  return queue_->Next(&tag, &ok);
}

v1::WorkerMessage* Sessions::Parse(grpc::ByteBuffer& bytes) {
  arena_.Reset();
  auto* message = google::protobuf::Arena::CreateMessage<v1::WorkerMessage>(&arena_);
  const bool parsed =
      grpc::SerializationTraits<v1::WorkerMessage>::Deserialize(&bytes, message).ok();
  return parsed ? message : nullptr;
}

void Sessions::Count(int change) {
  const MutexLock lock(mutex_);
  count_ += change;
  changed_.NotifyAll();
}

}  // namespace sft::server
