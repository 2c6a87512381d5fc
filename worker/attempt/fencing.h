#pragma once

#include "common/base/clock.h"
#include "common/spec/job_spec.h"

namespace sft::worker {

// How long the ranks of a job go on after the last word of the server; zero: for ever. That is
// compute.unreachable_after with compute.on_unreachable = "replace", and zero with "wait".
Nanos FencingLimit(const spec::JobSpec::Compute& compute);

}  // namespace sft::worker
