#include "worker/attempt/fencing.h"

#include "common/base/duration.h"

namespace sft::worker {

Nanos FencingLimit(const spec::JobSpec::Compute& compute) {
  if (compute.on_unreachable == spec::OnUnreachable::kWait) return Nanos(0);
  const auto limit = ParseDuration(compute.unreachable_after);
  return limit ? Nanos(*limit)
               : Nanos(ParseDuration(spec::JobSpec::Compute().unreachable_after).value());
}

}  // namespace sft::worker
