#include "common/base/clock.h"

#include <fmt/format.h>

#include <cctype>
#include <cstdio>
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

std::optional<WallTime> ParseUtc(std::string_view text) {
  const std::string whole(text);
  std::tm utc{};
  int used = 0;
  const int fields =
      std::sscanf(whole.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d%n", &utc.tm_year, &utc.tm_mon,
                  &utc.tm_mday, &utc.tm_hour, &utc.tm_min, &utc.tm_sec, &used);
  constexpr int kDigits = 19;  // length of "2026-01-31T12:34:56"
  if (fields != 6 || used != kDigits) return std::nullopt;
  std::string_view rest = std::string_view(whole).substr(kDigits);
  Nanos part{0};
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    for (Nanos unit = std::chrono::milliseconds(100); !rest.empty() && std::isdigit(rest[0]) != 0;
         unit /= 10) {
      part += unit * (rest[0] - '0');
      rest.remove_prefix(1);
    }
  }
  const std::chrono::year_month_day day{std::chrono::year(utc.tm_year),
                                        std::chrono::month(static_cast<unsigned>(utc.tm_mon)),
                                        std::chrono::day(static_cast<unsigned>(utc.tm_mday))};
  const bool in_day = utc.tm_hour >= 0 && utc.tm_hour < 24 && utc.tm_min >= 0 && utc.tm_min < 60 &&
                      utc.tm_sec >= 0 && utc.tm_sec < 60;
  // A count of nanoseconds in 64 bits reaches from 1677 to 2262.
  const bool in_range = utc.tm_year >= 1678 && utc.tm_year <= 2261;
  if (rest != "Z" || !day.ok() || !in_day || !in_range) return std::nullopt;
  return WallTime(std::chrono::sys_days(day)) + std::chrono::hours(utc.tm_hour) +
         std::chrono::minutes(utc.tm_min) + std::chrono::seconds(utc.tm_sec) + part;
}

}  // namespace sft
