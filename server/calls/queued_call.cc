#include "server/calls/queued_call.h"

#include <memory>

namespace sft::server {

void QueuedCall::Release() {
  if (--held_ == 0) const std::unique_ptr<QueuedCall> last(this);
}

}  // namespace sft::server
