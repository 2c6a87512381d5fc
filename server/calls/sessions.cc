#include "server/calls/sessions.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <utility>

#include "server/calls/session.h"

namespace sft::server {
namespace {

// Commits are made in groups: so many reports can wait for one.
constexpr int kHands = 8;

}  // namespace

void Sessions::Start(GrpcMethods& methods, Door& door, CallQueue& queue) {
  methods_ = &methods;
  door_ = &door;
  queue_ = &queue;
  hands_ = std::make_unique<Hands>(kHands);
  Session::Accept(*this);
}

void Sessions::Stop() { hands_.reset(); }

v1::WorkerMessage* Sessions::Parse(grpc::ByteBuffer& bytes) {
  arena_.Reset();
  auto* message = google::protobuf::Arena::CreateMessage<v1::WorkerMessage>(&arena_);
  const bool parsed =
      grpc::SerializationTraits<v1::WorkerMessage>::Deserialize(&bytes, message).ok();
  return parsed ? message : nullptr;
}

}  // namespace sft::server
