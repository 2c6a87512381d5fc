#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/core/change_hub.h"
#include "server/door/followed_call.h"

namespace sft::server {

// A call that follows, and what wakes it: the part of its life that is the same for all transports.
// They look for it when it is woken and nothing that it has written waits to be sent. Its looks may
// come from several threads, one at a time.
class Following {
 public:
  // All borrowed. `wake` asks for a look; as ChangeHub::Subscribe says.
  Following(Door& door, ChangeHub& hub, const Method& method, Exchange& exchange,
            std::function<void()> wake)
      : call_(door, method, exchange), hub_(hub), wake_(std::move(wake)) {}

  // kEnd: the call is over with status(), and `wake` is called no more.
  Follower::Next Look();
  const absl::Status& status() const { return call_.status(); }

 private:
  absl::Status Subscribe();

  FollowedCall call_;
  ChangeHub& hub_;
  const std::function<void()> wake_;
  std::vector<std::string> keys_;
  std::unique_ptr<ChangeHub::Subscription> subscription_;
};

}  // namespace sft::server
