#pragma once

#include "common/base/clock.h"
#include "worker/rank/arguments.h"

namespace sft::rank {

// `sft-rank meet`: joins the other ranks, adds numbers with them and says how long that took.
// Returns the exit code. Throws engine errors.
int RunMeet(const Arguments& arguments, Clock& clock);

}  // namespace sft::rank
