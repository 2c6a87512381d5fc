#include "worker/attempt/gang_watch.h"

#include <algorithm>

#include "common/io/proc.h"
#include "worker/attempt/verdict.h"

namespace sft::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Nanos kMinInterval = milliseconds(100);
constexpr Nanos kMaxInterval = seconds(1);
// A longer gap between two looks: this process, or the machine, stood still.
constexpr Nanos kGap = seconds(10);
constexpr Nanos kMaxConfirmation = seconds(3);

}  // namespace

HangLimits LimitsOf(const spec::JobSpec::Compute& compute) {
  HangLimits limits;
  limits.step = seconds(compute.hang_timeout);
  limits.other = std::max(limits.other, limits.step);
  return limits;
}

GangWatch::GangWatch(Options options, Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      interval_(std::clamp(options_.gang.limits.step / 10, kMinInterval, kMaxInterval)),
      stragglers_({.alike = options_.gang.world / options_.gang.stages}) {}

std::vector<RankLook> GangWatch::Ranks(const channel::ShimStatus& status) {
  std::vector<RankLook> ranks;
  for (const auto& process : status.processes) {
    if (process.rank < 0) continue;
    RankLook look{.rank = process.rank};
    const auto place = options_.places.find(process.rank);
    if (place != options_.places.end()) look.place = place->second;
    if (const auto stat = io::ReadProcessStat(static_cast<pid_t>(process.pid));
        stat && !process.exited) {
      look.state = stat->state;
      const auto before = cpu_ticks_.find(process.rank);
      look.busy = before != cpu_ticks_.end() && stat->cpu_ticks > before->second;
      cpu_ticks_[process.rank] = stat->cpu_ticks;
    }
    auto flight =
        channel::ReadFlightRecord(channel::FlightPath(options_.attempt_dir, process.rank));
    if (flight.ok()) look.flight = *std::move(flight);
    ranks.push_back(std::move(look));
  }
  return ranks;
}

GangWatch::News GangWatch::Look(const channel::ShimStatus& status) {
  News news;
  const MonoTime now = clock_.Mono();
  if (looked_at_ && now - *looked_at_ < interval_) return news;
  const bool gap = !looked_at_ || now - *looked_at_ > kGap;
  looked_at_ = now;
  std::vector<RankLook> ranks = Ranks(status);
  for (const auto& straggler : stragglers_.Look(ranks)) {
    news.warnings.push_back(Describe(straggler, options_.gang.node));
  }
  // A rank that has ended well is waited for by nobody.
  std::erase_if(ranks, [](const RankLook& look) { return look.state == 0; });
  std::optional<v1::Verdict> hang = JudgeHang(ranks, options_.gang, now);
  if (!hang || gap) {
    suspected_at_.reset();
    return news;
  }
  if (!suspected_at_) suspected_at_ = now;
  if (now - *suspected_at_ >= std::min(kMaxConfirmation, options_.gang.limits.step / 4)) {
    news.hang = std::move(hang);
  }
  return news;
}

void GangWatch::AddTraces(const channel::ShimStatus& status, v1::Verdict& verdict) {
  const std::vector<RankLook> ranks = Ranks(status);
  // Peers that only lost the collective do not say why it broke.
  if (verdict.code() == kCascadeCode) {
    if (std::optional<v1::Verdict> desync = FindDesync(ranks, options_.gang)) {
      desync->mutable_evidence()->MergeFrom(verdict.evidence());
      verdict = *std::move(desync);
    }
  }
  for (const RankLook& look : ranks) {
    if (look.flight) verdict.add_evidence(DescribeRank(look, clock_.Mono()));
  }
}

}  // namespace sft::worker
