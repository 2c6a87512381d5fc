#include "client/output/node_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <vector>

#include "client/output/format.h"

namespace sft::client {
namespace {

// A larger difference between clocks makes times of logs and events wrong; nothing else depends on
// them.
constexpr double kClockTold = 2;

std::string ClockText(const v1::Node& node) {
  if (!node.has_clock_offset_seconds() || std::abs(node.clock_offset_seconds()) < kClockTold) {
    return "";
  }
  return fmt::format("its clock is {} {}", Duration(std::abs(node.clock_offset_seconds())),
                     node.clock_offset_seconds() > 0 ? "ahead" : "behind");
}

}  // namespace

std::string DiskText(const v1::Node& node) {
  if (!node.has_disk() || node.disk().total_bytes() == 0) return "-";
  const double share = static_cast<double>(node.disk().free_bytes()) /
                       static_cast<double>(node.disk().total_bytes());
  const auto level = node.disk().level();
  return fmt::format("{:.0f}% free{}", 100 * share,
                     level == v1::NodeDisk::FULL  ? " FULL"
                     : level == v1::NodeDisk::LOW ? " LOW"
                                                  : "");
}

std::string WhyText(const v1::Node& node) {
  std::vector<std::string> why;
  if (!node.unusable().empty()) why.push_back(node.unusable());
  if (!node.left_out().empty()) why.push_back(node.left_out());
  if (!node.rival().empty()) why.push_back(node.rival());
  if (const std::string clock = ClockText(node); !clock.empty()) why.push_back(clock);
  for (const v1::Slot& slot : node.slots()) {
    if (slot.healthy()) continue;
    why.push_back(fmt::format("slot {}: {}", slot.index(), slot.health_reason()));
  }
  return fmt::format("{}", fmt::join(why, "; "));
}

}  // namespace sft::client
