#include "server/calls/session.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "common/rpc/status.h"
#include "server/calls/grpc_methods.h"
#include "server/calls/messages.h"
#include "server/calls/sessions.h"
#include "server/door/door.h"

namespace sft::server {
namespace {

v1::ServerMessage AnswerTo(const v1::Observed& observed) {
  v1::ServerMessage answer;
  answer.mutable_observed_answer()->set_sequence(observed.sequence());
  return answer;
}

}  // namespace

void Session::Link::Send(const v1::ServerMessage& message) {
  MutexLock lock(mutex_);
  if (session_ != nullptr) session_->Enqueue(message);
}

void Session::Link::Close(const absl::Status& why) {
  MutexLock lock(mutex_);
  if (session_ != nullptr) session_->FinishOnce(rpc::ToGrpc(why));
}

void Session::Link::Detach() {
  MutexLock lock(mutex_);
  session_ = nullptr;
}

void Session::Accept(Sessions& sessions) {
  std::unique_ptr<Session> made(new Session(sessions));
  Session* const session = made.release();  // deletes itself
  session->context_.AsyncNotifyWhenDone(&session->ended_);
  sessions.methods_->RequestSession(&session->context_, &session->stream_, sessions.queue_->get(),
                                    session->accepted_.Begin());
}

Session::Session(Sessions& sessions)
    : QueuedCall(*sessions.queue_),
      sessions_(sessions),
      stream_(&context_),
      link_(std::make_shared<Link>(this)),
      accepted_(*this, [this](bool ok) { OnAccepted(ok); }),
      read_(*this, [this](bool ok) { OnRead(ok); }),
      written_(*this, [this](bool ok) { OnWritten(ok); }),
      finish_(*this, [](bool) {}),
      ended_(*this, [this](bool) { OnEnded(); }) {}

Session::~Session() {
  link_->Detach();
  if (!node_.empty()) sessions_.registry_.Disconnect(node_, link_.get());
}

void Session::OnAccepted(bool ok) {
  if (!ok) return;  // the server shuts down
  Hold();           // until OnEnded
  Accept(sessions_);
  origin_ = OriginOf(context_);
  call_.emplace(sessions_.door_->gate(), sessions_.rule_, origin_);
  if (const absl::Status status = sessions_.door_->AdmitCaller(*call_, /*streams=*/false);
      !status.ok()) {
    sessions_.door_->Record(*call_, status);
    FinishOnce(rpc::ToGrpc(status));
    return;
  }
  if (call_->caller().kind == Principal::Kind::kNode) certified_ = call_->caller().name;
  Read();
}

void Session::OnRead(bool ok) {
  if (!ok) {
    FinishOnce(grpc::Status::OK);
    return;
  }
  const v1::WorkerMessage* const message = sessions_.Parse(incoming_);
  if (message == nullptr) {
    Handled(InvalidArgument("what the worker sent is no message"));
  } else if (message->has_register_()) {
    Register(message->register_());
  } else if (node_.empty()) {
    Handled(FailedPrecondition("the first message of a session must be Register"));
  } else if (message->has_observed()) {
    Observe(message->observed());
  } else {
    Handled(absl::OkStatus());
  }
}

void Session::Register(const v1::Register& message) {
  if (!node_.empty()) {
    Handled(InvalidArgument("a second Register on one stream"));
    return;
  }
  Hold();
  sessions_.hands_->Give([this, message] {
    const std::string& node = message.node();
    const absl::Status accepted =
        certified_.empty() || node == certified_
            ? sessions_.registry_.Connect(message, link_)
            : PermissionDenied(fmt::format(
                  "this worker calls itself {} and has the certificate of {}: start it with --node "
                  "{}, or with another --data-dir and a join token",
                  node.substr(0, 80), certified_, certified_));
    v1::ServerMessage welcome;
    *welcome.mutable_welcome() = sessions_.registry_.MakeWelcome(accepted);
    Welcome(welcome);
    if (accepted.ok()) node_ = node;
    Handled(accepted);
    Release();
  });
}

void Session::Observe(const v1::Observed& observed) {
  absl::StatusOr<WorkerRegistry::News> news =
      sessions_.registry_.Hear(node_, link_.get(), observed);
  if (!news.ok() || news->idle) {
    if (news.ok()) Enqueue(AnswerTo(observed));
    Handled(news.status());
    return;
  }
  Hold();
  sessions_.hands_->Give([this, observed, news = *std::move(news)] {
    const absl::Status kept = sessions_.registry_.Keep(node_, link_.get(), observed, news);
    if (kept.ok()) Enqueue(AnswerTo(observed));
    Handled(kept);
    Release();
  });
}

void Session::Handled(const absl::Status& handled) {
  if (!handled.ok()) {
    spdlog::warn("session of {}: {}", node_.empty() ? context_.peer() : node_, Message(handled));
    call_->SetObject(node_);
    sessions_.door_->Record(*call_, handled);
    // A store that is busy or full must not cost the stream: the next report says it all again.
    if (node_.empty() || absl::IsAborted(handled) || absl::IsInvalidArgument(handled)) {
      FinishOnce(rpc::ToGrpc(handled));
      return;
    }
  }
  Read();
}

void Session::Read() {
  MutexLock lock(mutex_);
  if (finished_) return;
  stream_.Read(&incoming_, read_.Begin());
}

// The registry may have had something for the node before its Connect returned.
void Session::Welcome(const v1::ServerMessage& message) {
  MutexLock lock(mutex_);
  if (finishing_ || finished_) return;
  welcomed_ = true;
  queue_.push_front(BytesOf(message));
  Write();
}

void Session::Enqueue(const v1::ServerMessage& message) {
  bool overflow = false;
  {
    MutexLock lock(mutex_);
    if (finishing_ || finished_) return;
    overflow = queue_.size() >= kMaxQueue;
    if (!overflow) {
      queue_.push_back(BytesOf(message));
      if (welcomed_ && queue_.size() == 1) Write();
    }
  }
  if (overflow) FinishOnce({grpc::StatusCode::RESOURCE_EXHAUSTED, "the worker reads too slowly"});
}

void Session::Write() { stream_.Write(queue_.front(), written_.Begin()); }

void Session::OnWritten(bool ok) {
  MutexLock lock(mutex_);
  queue_.pop_front();
  if (finished_) return;
  if (!ok) queue_.clear();
  if (!queue_.empty()) {
    Write();
  } else if (finishing_) {
    Finish();
  }
}

// What is queued, a refusal for instance, is still sent.
void Session::FinishOnce(const grpc::Status& status) {
  MutexLock lock(mutex_);
  if (finishing_ || finished_) return;
  finishing_ = true;
  final_status_ = status;
  if (queue_.empty() || !welcomed_) Finish();
}

void Session::Finish() {
  finished_ = true;
  stream_.Finish(final_status_, finish_.Begin());
}

void Session::OnEnded() {
  MutexLock lock(mutex_);
  finished_ = true;
}

}  // namespace sft::server
