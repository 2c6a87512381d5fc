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

absl::Status FollowCall::Subscribe() {
  keys_ = call_->keys();
  if (subscription_ != nullptr) {
    subscription_->SetKeys(keys_);
    return absl::OkStatus();
  }
  SFT_ASSIGN_OR_RETURN(
      subscription_, followers_.hub_.Subscribe(keys_, [this] { followers_.lookers_.Wake(*this); }));
  return absl::OkStatus();
}

Follower::Next FollowCall::LookOnce() {
  using Next = Follower::Next;
  if (call_ == nullptr) {
    origin_ = OriginOf(context_);
    call_ =
        std::make_unique<FollowedCall>(followers_.door_, method_, static_cast<Exchange&>(*this));
  }
  const Next next = call_->Look();
  if (next == Next::kEnd) return next;
  absl::Status ends;
  if (call_->keys() != keys_) {
    ends = Subscribe();
    if (ends.ok()) return Next::kAgain;  // what changed before it subscribed
  } else if (next == Next::kWait && followers_.hub_.stopped()) {
    ends = Unavailable("the server is stopping: ask again from where you are");
  }
  if (ends.ok()) return next;
  call_->End(ends);
  return Next::kEnd;
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
  subscription_.reset();
  call_.reset();
  followers_.lookers_.Remove(*this);
  stream_.Finish(status, finished_.Begin());
}

}  // namespace sft::server
