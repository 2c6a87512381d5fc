// The use of a node's GPUs over time.

#include <fmt/format.h>

#include <algorithm>

#include "common/base/round.h"
#include "server/core/convert.h"
#include "server/services/cluster_service.h"
#include "server/store/nodes.h"

namespace sft::server {
namespace {

constexpr int64_t kSecondUs = 1'000'000;
constexpr int64_t kDefaultSeconds = 3600, kMaxSeconds = GpuHistory::kDaysKept * int64_t{24} * 3600;
constexpr int kDefaultPoints = 300, kMaxPoints = 2000;

// As long as it takes for so many points, in whole steps of what is kept of a time `ago_us` before
// now.
int64_t StepOf(int64_t span_us, int64_t ago_us, int points) {
  const int64_t kept =
      ago_us <= GpuHistory::kFineKeptUs ? GpuHistory::kFineUs : GpuHistory::kMinuteUs;
  return RoundUp(CeilDiv(span_us, points), kept);
}

}  // namespace

absl::StatusOr<v1::NodeHistory> ClusterService::GetNodeHistory(
    CallContext&, const v1::GetNodeHistoryRequest& request) {
  const std::string& name = request.node();
  const std::string node = name.starts_with("nodes/") ? name.substr(6) : name;
  SFT_RETURN_IF_ERROR(
      store_.Read([&](Database& db) -> absl::Status { return store::GetNode(db, node).status(); }));
  const int64_t seconds = request.since_seconds() == 0 ? kDefaultSeconds : request.since_seconds();
  const int most = request.max_points() == 0 ? kDefaultPoints : request.max_points();
  if (seconds < 1 || seconds > kMaxSeconds || most < 1) {
    return InvalidArgument(
        fmt::format("the use of GPUs is told of 1 second to {} days, with 1 to {} points",
                    GpuHistory::kDaysKept, kMaxPoints));
  }
  const int64_t until = request.until_seconds();
  if (until < 0 || until >= seconds) {
    return InvalidArgument(
        fmt::format("a span that begins {} seconds ago cannot end {} seconds ago", seconds, until));
  }
  const int64_t now_us = UnixMicros(clock_.Wall());
  const int64_t step_us =
      StepOf((seconds - until) * kSecondUs, seconds * kSecondUs, std::min(most, kMaxPoints));
  // Whole steps, so that the points of the next call are at the same times.
  const int64_t begin_us = RoundUp(now_us - seconds * kSecondUs, step_us);
  SFT_ASSIGN_OR_RETURN(const auto gpus,
                       gpus_.Read(node, begin_us, now_us - until * kSecondUs, step_us));
  v1::NodeHistory history;
  history.set_step_seconds(step_us / kSecondUs);
  for (const auto& [slot, points] : gpus) {
    v1::GpuHistory& gpu = *history.add_gpus();
    gpu.set_slot(slot);
    for (const GpuHistory::Point& point : points) {
      v1::GpuUse& added = *gpu.add_points();
      *added.mutable_time() = ToTimestamp(point.time_us);
      added.set_memory_used_bytes(point.use.memory_bytes);
      added.set_utilization_percent(point.use.utilization_percent);
      added.set_power_watts(point.use.power_watts);
      added.set_temperature_celsius(point.use.temperature_celsius);
    }
  }
  return history;
}

}  // namespace sft::server
