#include "worker/daemon/lease.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstring>
#include <ctime>

#include "common/base/duration.h"
#include "common/base/env.h"
#include "common/io/file.h"

namespace sft::worker {
namespace {

using std::chrono::seconds;

// From the start of the worker until jobs can be placed.
constexpr seconds kSetUp{30};
constexpr seconds kLongestLead{7 * 24 * 3600};

// What Slurm says where there is no limit, or none yet.
bool SaysNothing(const std::string& text) {
  return text.empty() || text == "UNLIMITED" || text == "N/A" || text == "NONE" ||
         text == "Unknown";
}

// Seconds since the Unix epoch, UTC with a Z, or this machine's time as squeue prints it.
std::optional<WallTime> ParseTime(const std::string& text) {
  constexpr int64_t kLastSecond = 9'000'000'000;  // in 2255; a clock's nanoseconds reach to 2262
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  if (read.ec == std::errc() && read.ptr == end) {
    const bool fits = number > 0 && number <= kLastSecond;
    return fits ? std::optional(WallTime(seconds(number))) : std::nullopt;
  }
  if (text.ends_with('Z')) return ParseUtc(text);
  std::tm local = {};
  const char* const left = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &local);
  if (left == nullptr || *left != '\0') return std::nullopt;
  local.tm_isdst = -1;
  const std::time_t time = mktime(&local);
  return time > 0 && time <= kLastSecond ? std::optional(WallTime(seconds(time))) : std::nullopt;
}

absl::Status CheckLength(WallTime end, WallTime now, seconds lead, const std::string& source) {
  const auto left = std::chrono::floor<seconds>(end - now);
  const seconds least = 2 * lead + kSetUp;
  if (left >= least) return absl::OkStatus();
  const seconds fitting = std::max(seconds(0), (left - kSetUp) / 2);
  return InvalidArgument(fmt::format(
      "the allocation ends at {} ({}), in {} s: too soon for a job to begin and to write its "
      "checkpoint, for each of which --leave-lead keeps {} s. Ask for an allocation of at least {} "
      "s (sbatch --time={}){}",
      FormatUtc(end), source, std::max<int64_t>(0, left.count()), lead.count(), least.count(),
      std::chrono::ceil<std::chrono::minutes>(least).count(),
      fitting > seconds(0)
          ? fmt::format(", or, if checkpoints are written and uploaded faster, --leave-lead {}s",
                        fitting.count())
          : ""));
}

}  // namespace

absl::StatusOr<std::optional<v1::Lease>> MakeLease(const Options& options, WallTime now) {
  if (!options.ephemeral) {
    const char* const alone = !options.leave_at.empty()     ? "--leave-at"
                              : !options.leave_idle.empty() ? "--leave-idle"
                                                            : nullptr;
    if (alone == nullptr) return std::optional<v1::Lease>();
    return InvalidArgument(fmt::format("{} is for a node that is lent: add --ephemeral", alone));
  }
  const auto lead = ParseDuration(options.leave_lead);
  if (!lead || *lead < seconds(1) || *lead > kLongestLead) {
    return InvalidArgument(
        fmt::format("--leave-lead {}: not a time such as 5m, of 1 s to 7 d", options.leave_lead));
  }
  if (!options.leave_idle.empty() && !ParseDuration(options.leave_idle)) {
    return InvalidArgument(
        fmt::format("--leave-idle {}: not a time such as 10m", options.leave_idle));
  }
  v1::Lease lease;
  lease.set_lead_seconds(static_cast<int32_t>(lead->count()));
  if (const auto job = GetEnv("SLURM_JOB_ID")) lease.set_allocation("Slurm job " + *job);
  const bool given = !options.leave_at.empty();
  const std::string text = given ? options.leave_at : GetEnv("SLURM_JOB_END_TIME").value_or("");
  const std::string source = (given ? "--leave-at " : "SLURM_JOB_END_TIME=") + text;
  if (SaysNothing(text)) return std::optional(lease);
  const std::optional<WallTime> end = ParseTime(text);
  if (!end) {
    return InvalidArgument(fmt::format(
        "{}: not a time: 2026-11-28T09:30:00 (this machine's), 2026-11-28T09:30:00Z or seconds "
        "since 1970",
        source));
  }
  // What an earlier life of this worker left has to be seen to however little time there is.
  if (!io::Exists(options.data_dir + "/attempts")) {
    SFT_RETURN_IF_ERROR(CheckLength(*end, now, *lead, source));
  }
  lease.set_end_us(UnixMicros(*end));
  return std::optional(lease);
}

std::string DefaultNodeName(const std::string& host, bool ephemeral) {
  const auto job = ephemeral ? GetEnv("SLURM_JOB_ID") : std::nullopt;
  if (!job) return host;
  const std::string restarts = GetEnv("SLURM_RESTART_COUNT").value_or("0");
  const std::string name = GetEnv("SLURMD_NODENAME").value_or(host) + "-" + *job;
  return restarts == "0" ? name : name + "-" + restarts;
}

Departure::Departure(std::optional<v1::Lease> lease, const Options& options, Agent& agent)
    : lease_(std::move(lease)),
      idle_(ParseDuration(options.leave_idle).value_or(seconds(0))),
      agent_(agent),
      busy_at_(agent.Now()) {}

void Departure::AddTo(v1::Register& message) const {
  if (lease_) *message.mutable_facts()->mutable_lease() = *lease_;
  message.set_leaving(agent_.Leaving());
}

void Departure::OnSignal(int number) {
  const std::string name = strsignal(number);
  spdlog::info("ending: signal {} ({})", number, name);
  // A server that has never answered could not dismiss this worker, either.
  if (!lease_ || agent_.Heard() == MonoTime()) return End();
  const bool again = !agent_.Leave(fmt::format("its worker got signal {} ({})", number, name));
  if (again && number == SIGINT) End();
}

void Departure::OnDismissed() {
  dismissed_ = true;
  End();
}

void Departure::End() {
  ended_ = true;
  agent_.NotifyChange();
}

void Departure::SayEnd() const {
  spdlog::info(dismissed_ ? "ended: this node has left the fleet"
                          : "ended; running ranks go on under their shims");
}

void Departure::Look() {
  if (idle_ == Nanos(0)) return;
  const MonoTime now = agent_.Now();
  if (agent_.HasAttempts()) busy_at_ = now;
  if (now - busy_at_ < idle_) return;
  agent_.Leave(fmt::format("no job for {}", DurationText(std::chrono::floor<seconds>(idle_))));
}

}  // namespace sft::worker
