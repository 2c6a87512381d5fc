#pragma once

#include <ctime>

#include "common/base/clock.h"

namespace sft::rpc {

// Converts a wall-clock time to the monotonic clock, where `wall` and `mono` are now.
timespec OnMonotonicClock(timespec moment, WallTime wall, MonoTime mono);

}  // namespace sft::rpc
