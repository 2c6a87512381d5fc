#pragma once

#include <ctime>

#include "common/base/clock.h"

namespace sft::rpc {

// A moment of the wall clock on the monotonic one, where `wall` and `mono` are now.
timespec OnMonotonicClock(timespec moment, WallTime wall, MonoTime mono);

}  // namespace sft::rpc
