#include "client/output/format.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "client/output/text.h"
#include "common/base/bytes.h"
#include "common/base/clock.h"

namespace sft::client {

std::string ShortName(const std::string& name) {
  const size_t slash = name.rfind('/');
  return OneLine(slash == std::string::npos ? name : name.substr(slash + 1));
}

std::string ProjectOfName(const std::string& name) {
  const std::string_view projects = "projects/";
  if (!name.starts_with(projects)) return "";
  return name.substr(projects.size(), name.find('/', projects.size()) - projects.size());
}

std::string Bytes(int64_t bytes) { return BytesText(bytes); }

std::string Duration(double seconds) {
  if (!(seconds >= 0) || std::isinf(seconds)) return "-";
  const int64_t whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
  return fmt::format("{}d{:02}h", whole / 86400, whole / 3600 % 24);
}

std::string Count(double value) {
  if (value < 1000) return fmt::format("{:.0f}", value);
  if (value < 1e6) return fmt::format("{:.1f}k", value / 1e3);
  if (value < 1e9) return fmt::format("{:.2f}M", value / 1e6);
  return fmt::format("{:.2f}G", value / 1e9);
}

double Seconds(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + time.nanos() * 1e-9;
}

std::string Utc(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0) return "-";
  return FormatUtc(FromUnixMicros(time.seconds() * 1'000'000 + time.nanos() / 1000));
}

}  // namespace sft::client
