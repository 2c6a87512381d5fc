#include "server/calls/follow_call.h"

#include "common/rpc/status.h"
#include "server/calls/messages.h"

namespace sft::server {

void FollowCall::Accept(Followers& followers, const Method& method) {
  std::unique_ptr<FollowCall> made(new FollowCall(followers, method));
  FollowCall* const call = made.release();  // deletes itself
  call->context_.AsyncNotifyWhenDone(&call->ended_);
  followers.methods_.RequestFollow(method, &call->context_, &call->request_, &call->stream_,
                                   followers.queue_.get(), call->accepted_.Begin());
}

FollowCall::FollowCall(Followers& followers, const Method& method)
    : QueuedCall(followers.queue_),
      followers_(followers),
      method_(method),
      stream_(&context_),
      accepted_(*this, [this](bool ok) { OnAccepted(ok); }),
      written_(*this, [this](bool ok) { OnWritten(ok); }),
      finished_(*this, [](bool) {}),
      ended_(*this, [this](bool) { OnEnded(); }) {}

void FollowCall::OnAccepted(bool ok) {
  if (!ok) return;  // the server shuts down
  Hold();           // until OnEnded
  Accept(followers_, method_);
  followers_.lookers_.Wake(*this);
}

void FollowCall::OnWritten(bool ok) {
  if (!ok) gone_ = true;
  bool look = false;
  {
    const MutexLock lock(mutex_);
    answers_.pop_front();
    if (ok && !answers_.empty()) {
      stream_.Write(answers_.front(), written_.Begin());
      return;
    }
    answers_.clear();
    writing_ = false;
    look = missed_ || gone_ || next_ != Follower::Next::kWait;
    missed_ = false;
  }
  if (look) followers_.lookers_.Wake(*this);
}

void FollowCall::OnEnded() {
  gone_ = true;
  followers_.lookers_.Wake(*this);
}

absl::StatusOr<bool> FollowCall::Read(google::protobuf::Message& message) {
  SFT_RETURN_IF_ERROR(ParseMessage(request_, message));
  request_.Clear();
  return true;
}

bool FollowCall::Write(const google::protobuf::Message& message) {
  answers_.push_back(BytesOf(message));
  return !gone_;
}

Follower::Next FollowCall::LookOnce() {
  if (call_ == nullptr) {
    origin_ = OriginOf(context_);
    call_ = std::make_unique<Following>(followers_.door_, followers_.hub_, method_,
                                        static_cast<Exchange&>(*this),
                                        [this] { followers_.lookers_.Wake(*this); });
  }
  return call_->Look();
}

void FollowCall::Look() {
  {
    const MutexLock lock(mutex_);
    missed_ = writing_;
    if (writing_) return;
  }
  const bool over = next_ == Follower::Next::kEnd;  // and all of it has gone out
  if (!over) next_ = LookOnce();
  if (!over && !answers_.empty() && !gone_) {
    const MutexLock lock(mutex_);
    writing_ = true;
    stream_.Write(answers_.front(), written_.Begin());
  } else if (next_ == Follower::Next::kEnd) {
    Finish();
  } else if (next_ == Follower::Next::kAgain) {
    followers_.lookers_.Wake(*this);
  }
}

// Its place is free before its caller knows that it has ended.
void FollowCall::Finish() {
  const grpc::Status status = rpc::ToGrpc(call_->status());
  call_.reset();
  followers_.lookers_.Remove(*this);
  stream_.Finish(status, finished_.Begin());
}

}  // namespace sft::server
