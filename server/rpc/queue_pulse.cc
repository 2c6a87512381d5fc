#include "server/rpc/queue_pulse.h"

#include <grpcpp/generic/generic_stub.h>

#include <utility>

#include "common/obs/log.h"

namespace sft::server {
namespace {

// A thread sleeps after 1 s.
constexpr std::chrono::milliseconds kPeriod{300};

}  // namespace

QueuePulse::QueuePulse(std::shared_ptr<grpc::Channel> channel)
    : channel_(std::move(channel)), thread_([this] { Loop(); }) {}

QueuePulse::~QueuePulse() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void QueuePulse::Loop() {
  obs::NameThread("pulse");
  grpc::GenericStub stub(channel_);
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  for (bool closing = false; !closing;) {
    grpc::ClientContext context;
    grpc::ByteBuffer response;
    bool ended = false;
    // Ended by its deadline before it begins.
    context.set_deadline(gpr_now(GPR_CLOCK_MONOTONIC));
    stub.UnaryCall(&context, "/sft.v1.None/None", grpc::StubOptions(), &request, &response,
                   [&](const grpc::Status&) {
                     const MutexLock lock(mutex_);
                     ended = true;
                     changed_.NotifyAll();
                   });
    const MutexLock lock(mutex_);
    while (!ended) changed_.Wait(mutex_);
    if (!closing_) changed_.WaitFor(mutex_, kPeriod);
    closing = closing_;
  }
}

}  // namespace sft::server
