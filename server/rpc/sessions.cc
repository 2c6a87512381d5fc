#include "server/rpc/sessions.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <utility>

#include "common/obs/log.h"
#include "server/rpc/session.h"

namespace sft::server {
namespace {

// Commits are made in groups: so many reports can wait for one.
constexpr int kHands = 8;

}  // namespace

Sessions::~Sessions() { Stop(); }

void Sessions::Start(GrpcMethods& methods, Door& door,
                     std::unique_ptr<grpc::ServerCompletionQueue> queue) {
  methods_ = &methods;
  door_ = &door;
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
  while (queue_->Next(&tag, &ok)) static_cast<Session::Event*>(tag)->Happen(ok);
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
