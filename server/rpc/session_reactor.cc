#include "server/rpc/session_reactor.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/rpc/status.h"
#include "server/rpc/principal.h"

namespace sft::server {

void SessionReactor::Link::Send(const v1::ServerMessage& message) {
  MutexLock lock(mutex_);
  if (reactor_ != nullptr) reactor_->Enqueue(message);
}

void SessionReactor::Link::Close(const absl::Status& why) {
  MutexLock lock(mutex_);
  if (reactor_ != nullptr) reactor_->FinishOnce(rpc::ToGrpc(why));
}

void SessionReactor::Link::Detach() {
  MutexLock lock(mutex_);
  reactor_ = nullptr;
}

SessionReactor* SessionReactor::Make(WorkerRegistry& registry,
                                     grpc::CallbackServerContext* context) {
  // The library owns a reactor until OnDone, where it deletes itself.
  std::unique_ptr<SessionReactor> reactor(new SessionReactor(registry, context));
  SessionReactor* const raw = reactor.release();
  if (const grpc::Status status = Admit(*context); !status.ok()) {
    raw->FinishOnce(status);
  } else {
    const Principal& caller = CallerOf(*context);
    if (caller.kind == Principal::Kind::kNode) raw->certified_ = caller.name;
    raw->StartRead(&raw->incoming_);
  }
  return raw;
}

SessionReactor::SessionReactor(WorkerRegistry& registry, grpc::CallbackServerContext* context)
    : registry_(registry), context_(context), link_(std::make_shared<Link>(this)) {}

absl::Status SessionReactor::Handle() {
  if (incoming_.has_register_()) {
    if (!node_.empty()) return InvalidArgument("a second Register on one stream");
    const std::string& node = incoming_.register_().node();
    const absl::Status accepted =
        certified_.empty() || node == certified_
            ? registry_.Connect(incoming_.register_(), link_)
            : PermissionDenied(fmt::format(
                  "this worker calls itself {} and has the certificate of {}: start it with --node "
                  "{}, or with another --data-dir and a join token",
                  node.substr(0, 80), certified_, certified_));
    v1::ServerMessage welcome;
    *welcome.mutable_welcome() = registry_.MakeWelcome(accepted);
    Welcome(welcome);
    if (accepted.ok()) node_ = incoming_.register_().node();
    return accepted;
  }
  if (node_.empty()) return FailedPrecondition("the first message of a session must be Register");
  if (!incoming_.has_observed()) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(registry_.Observe(node_, link_.get(), incoming_.observed()));
  v1::ServerMessage answer;
  answer.mutable_observed_answer()->set_sequence(incoming_.observed().sequence());
  Enqueue(answer);
  return absl::OkStatus();
}

void SessionReactor::OnReadDone(bool ok) {
  if (!ok) {
    FinishOnce(grpc::Status::OK);
    return;
  }
  const absl::Status handled = Handle();
  if (!handled.ok()) {
    spdlog::warn("session of {}: {}", node_.empty() ? context_->peer() : node_, Message(handled));
    // A store that is busy or full must not cost the stream: the next report says it all again.
    if (node_.empty() || absl::IsAborted(handled) || absl::IsInvalidArgument(handled)) {
      FinishOnce(rpc::ToGrpc(handled));
      return;
    }
  }
  StartRead(&incoming_);
}

// The registry may have had something for the node before its Connect returned.
void SessionReactor::Welcome(const v1::ServerMessage& message) {
  MutexLock lock(mutex_);
  if (finishing_ || finished_) return;
  welcomed_ = true;
  queue_.push_front(message);
  StartWrite(&queue_.front());
}

void SessionReactor::Enqueue(const v1::ServerMessage& message) {
  bool overflow = false;
  {
    MutexLock lock(mutex_);
    if (finishing_ || finished_) return;
    overflow = queue_.size() >= kMaxQueue;
    if (!overflow) {
      queue_.push_back(message);
      if (welcomed_ && queue_.size() == 1) StartWrite(&queue_.front());
    }
  }
  if (overflow) FinishOnce({grpc::StatusCode::RESOURCE_EXHAUSTED, "the worker reads too slowly"});
}

void SessionReactor::OnWriteDone(bool ok) {
  MutexLock lock(mutex_);
  queue_.pop_front();
  if (!ok) queue_.clear();
  if (!queue_.empty()) {
    StartWrite(&queue_.front());
  } else if (finishing_ && !finished_) {
    finished_ = true;
    Finish(final_status_);
  }
}

// What is queued, a refusal for instance, is still sent.
void SessionReactor::FinishOnce(const grpc::Status& status) {
  MutexLock lock(mutex_);
  if (finishing_ || finished_) return;
  finishing_ = true;
  final_status_ = status;
  if (queue_.empty() || !welcomed_) {
    finished_ = true;
    Finish(final_status_);
  }
}

void SessionReactor::OnCancel() { FinishOnce(grpc::Status::CANCELLED); }

void SessionReactor::OnDone() {
  link_->Detach();
  if (!node_.empty()) registry_.Disconnect(node_, link_.get());
  std::unique_ptr<SessionReactor> self(this);
}

}  // namespace sft::server
