#pragma once

#include "server/calls/call_queue.h"
#include "server/calls/grpc_methods.h"
#include "server/core/change_hub.h"
#include "server/door/door.h"
#include "server/door/lookers.h"

namespace sft::server {

// The calls that follow something, none of which holds a thread.
class Followers {
 public:
  // Borrowed; all of them serve until Stop.
  Followers(GrpcMethods& methods, Door& door, ChangeHub& hub, CallQueue& queue, Clock& clock)
      : methods_(methods), door_(door), hub_(hub), queue_(queue), lookers_(clock) {}

  // From when the server and its queue have started.
  void Start();
  // When the queue has no call left.
  void Stop() { lookers_.Stop(); }

 private:
  friend class FollowCall;

  GrpcMethods& methods_;
  Door& door_;
  ChangeHub& hub_;
  CallQueue& queue_;
  Lookers lookers_;
};

}  // namespace sft::server
