#include "server/door/following.h"

namespace sft::server {

absl::Status Following::Subscribe() {
  keys_ = call_.keys();
  if (subscription_ != nullptr) {
    subscription_->SetKeys(keys_);
    return absl::OkStatus();
  }
  SFT_ASSIGN_OR_RETURN(subscription_, hub_.Subscribe(keys_, wake_));
  return absl::OkStatus();
}

Follower::Next Following::Look() {
  using Next = Follower::Next;
  Next next = call_.Look();
  if (next != Next::kEnd) {
    absl::Status ends;
    if (call_.keys() != keys_) {
      ends = Subscribe();
      next = Next::kAgain;  // what changed before it subscribed
    } else if (next == Next::kWait && hub_.stopped()) {
      ends = Unavailable("the server is stopping: ask again from where you are");
    }
    if (!ends.ok()) {
      call_.End(ends);
      next = Next::kEnd;
    }
  }
  if (next == Next::kEnd) subscription_.reset();
  return next;
}

}  // namespace sft::server
