#pragma once

#include <string>

#include "common/base/clock.h"

namespace sft::worker {

// How long the ranks of a job go on after the last word of the server; zero: for ever. With
// compute.on_unreachable = "replace" that is compute.unreachable_after (seconds, or text as "15m"),
// or `fallback` where the resolved job does not say; with "wait" it is zero.
Nanos FencingLimit(const std::string& resolved_json, Nanos fallback);

}  // namespace sft::worker
