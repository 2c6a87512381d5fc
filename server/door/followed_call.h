#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/door/call_context.h"
#include "server/door/follower.h"
#include "server/door/methods.h"

namespace sft::server {

// One call of a method that follows, from its beginning to its end: as Door::Serve, in looks
// instead of in a thread of its own. The first one admits it; before each, its caller is asked
// for again; the last one records how it ended. While it lives it counts as a stream. Its looks
// may come from several threads, one at a time.
class FollowedCall {
 public:
  // All borrowed.
  FollowedCall(Door& door, const Method& method, Exchange& exchange)
      : door_(door),
        method_(method),
        exchange_(exchange),
        call_(door.gate(), method.rule, exchange) {}

  // kEnd: the call is over with status().
  Follower::Next Look();
  // What it is to be woken by: by what its follower waits for, and by a change of what its caller
  // may do; those of a call that nobody has admitted yet, or that waits for nothing, are none.
  std::vector<std::string> keys() const;
  // Ends a call that is not over.
  void End(const absl::Status& status);
  const absl::Status& status() const { return status_; }

 private:
  absl::StatusOr<Follower::Next> TryLook();

  Door& door_;
  const Method& method_;
  Exchange& exchange_;
  CallContext call_;
  std::unique_ptr<Follower> follower_;
  absl::Status status_;
};

}  // namespace sft::server
