#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// Clocks: the only place that reads the time or sleeps. Code that needs the time takes a Clock&, so
// that tests can advance it by hand (FakeClock).

namespace sft {

using Nanos = std::chrono::nanoseconds;
// Wall time since the Unix epoch. It may jump: it is stored and shown, but never subtracted to make
// a decision.
using WallTime = std::chrono::sys_time<Nanos>;
// Monotonic time of this machine, for intervals and deadlines.
using MonoTime = std::chrono::time_point<std::chrono::steady_clock, Nanos>;

// Source of wall time, monotonic time and sleep.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual WallTime Wall() const = 0;
  virtual MonoTime Mono() const = 0;
  // Blocks the calling thread; FakeClock advances itself instead.
  virtual void Sleep(Nanos duration) = 0;

  // The machine's clocks; lives for the whole process.
  static Clock& Real();
};

// A clock that a test advances by hand. Thread-compatible: one test thread advances it.
class FakeClock : public Clock {
 public:
  WallTime Wall() const override { return WallTime(wall_); }
  MonoTime Mono() const override { return MonoTime(mono_); }
  void Sleep(Nanos duration) override { Advance(duration); }
  void Advance(Nanos duration) {
    wall_ += duration;
    mono_ += duration;
  }
  // Moves only the wall clock, as an administrator or NTP would.
  void JumpWall(Nanos duration) { wall_ += duration; }

 private:
  Nanos wall_{std::chrono::seconds(1'700'000'000)};
  Nanos mono_{std::chrono::seconds(1'000)};
};

int64_t UnixMicros(WallTime time);
WallTime FromUnixMicros(int64_t micros);
// "2026-01-31T12:34:56.789Z"
std::string FormatUtc(WallTime time);
// Parses "2026-01-31T12:34:56Z", with or without a fraction of a second; nullopt for any other
// text.
std::optional<WallTime> ParseUtc(std::string_view text);

}  // namespace sft
