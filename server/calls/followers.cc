#include "server/calls/followers.h"

#include "server/calls/follow_call.h"

namespace sft::server {

void Followers::Start() {
  lookers_.Start();
  for (const Method* method : methods_.followed()) FollowCall::Accept(*this, *method);
}

}  // namespace sft::server
