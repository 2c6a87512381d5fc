#include "common/rpc/monotonic_waits.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>

// Moves gRPC's waits from the wall clock to the monotonic one. gRPC waits through Abseil, whose
// futexes have an absolute deadline on CLOCK_REALTIME: when that clock is set back by an hour,
// gRPC's timers (the next attempt to reach a server, a deadline, a keepalive) fire an hour late.
// Our programs link both statically and with --wrap=syscall, so these calls come here and their
// deadline is converted to the monotonic clock, which nobody sets. Other calls pass unchanged.

namespace sft::rpc {

timespec OnMonotonicClock(timespec moment, WallTime wall, MonoTime mono) {
  constexpr long kSecond = 1'000'000'000;
  const Nanos shift = mono.time_since_epoch() - wall.time_since_epoch();
  time_t seconds = moment.tv_sec + shift.count() / kSecond;
  long nanos = moment.tv_nsec + shift.count() % kSecond;
  if (nanos < 0) {
    --seconds;
    nanos += kSecond;
  } else if (nanos >= kSecond) {
    ++seconds;
    nanos -= kSecond;
  }
  // Long past: the kernel rejects negative times.
  if (seconds < 0) return {0, 0};
  return {seconds, nanos};
}

}  // namespace sft::rpc

extern "C" {

long __real_syscall(long number, ...);

// Same shape as the library's own: six words, of which the kernel uses those it needs.
long __wrap_syscall(long number, ...) {
  va_list arguments;
  va_start(arguments, number);
  long word[6];
  for (long& value : word) value = va_arg(arguments, long);
  va_end(arguments);
  const auto* deadline = reinterpret_cast<const timespec*>(word[3]);
  constexpr int kWallClockWait = FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME;
  if (number != SYS_futex || (static_cast<int>(word[1]) & ~FUTEX_PRIVATE_FLAG) != kWallClockWait ||
      deadline == nullptr) {
    return __real_syscall(number, word[0], word[1], word[2], word[3], word[4], word[5]);
  }
  sft::Clock& clock = sft::Clock::Real();
  const timespec monotonic = sft::rpc::OnMonotonicClock(*deadline, clock.Wall(), clock.Mono());
  return __real_syscall(number, word[0], word[1] & ~FUTEX_CLOCK_REALTIME, word[2], &monotonic,
                        word[4], word[5]);
}

}  // extern "C"
