#include "server/door/followed_call.h"

#include "server/core/change_hub.h"
#include "server/door/door.h"

namespace sft::server {

absl::StatusOr<Follower::Next> FollowedCall::TryLook() {
  if (follower_ == nullptr) {
    SFT_ASSIGN_OR_RETURN(follower_, method_.follow(door_, call_, exchange_));
    return Follower::Next::kAgain;
  }
  if (call_.Gone()) return absl::CancelledError("the caller has gone");
  return follower_->Look(exchange_);
}

Follower::Next FollowedCall::Look() {
  Follower::Next next = Follower::Next::kEnd;
  const absl::Status looked = door_.Try(method_, [&]() -> absl::Status {
    SFT_ASSIGN_OR_RETURN(next, TryLook());
    return absl::OkStatus();
  });
  if (!looked.ok()) next = Follower::Next::kEnd;
  if (next == Follower::Next::kEnd) End(looked);
  return next;
}

std::vector<std::string> FollowedCall::keys() const {
  if (follower_ == nullptr) return {};
  std::vector<std::string> keys = follower_->keys();
  if (!keys.empty()) keys.push_back(ChangeHub::UserKey(call_.caller().name));
  return keys;
}

void FollowedCall::End(const absl::Status& status) { status_ = door_.Ended(call_, status); }

}  // namespace sft::server
