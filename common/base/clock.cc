#include "common/base/clock.h"

#include <fmt/format.h>

#include <ctime>
#include <thread>

namespace sft {
namespace {

class RealClock : public Clock {
 public:
  WallTime Wall() const override {
    return std::chrono::time_point_cast<Nanos>(std::chrono::system_clock::now());
  }
  MonoTime Mono() const override {
    return std::chrono::time_point_cast<Nanos>(std::chrono::steady_clock::now());
  }
  void Sleep(Nanos duration) override { std::this_thread::sleep_for(duration); }
};

}  // namespace

Clock& Clock::Real() {
  static RealClock clock;
  return clock;
}

int64_t UnixMicros(WallTime time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

WallTime FromUnixMicros(int64_t micros) { return WallTime(std::chrono::microseconds(micros)); }

std::string FormatUtc(WallTime time) {
  const int64_t millis =
      std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  const std::time_t seconds = static_cast<std::time_t>(millis / 1000);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900,
                     utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                     millis % 1000);
}

}  // namespace sft
