#include "worker/attempt/attempt.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <limits>

#include "worker/attempt/fencing.h"

namespace sft::worker {
namespace {

using std::chrono::hours;
using std::chrono::minutes;

// Of what stands between a job and its start: another node may do better.
constexpr Retries::Limit kStagingLimit{10, minutes(15)};
// Of logs and events while the ranks work, which wait for nobody: never enough.
constexpr Retries::Limit kLiveShippingLimit{std::numeric_limits<int>::max(), Nanos::max()};
// Of them at an attempt's end: its slots wait for them.
constexpr Retries::Limit kShippingLimit{20, hours(1)};
// Of what the whole attempt was for: a full disk of the server may last.
constexpr Retries::Limit kDeliveryLimit{20, hours(6)};

std::optional<RankUser> UserOf(const AttemptRecord& record, const NodeSetup& setup) {
  if (!record.launched) return setup.rank_user;
  if (record.rank_uid == 0) return std::nullopt;
  if (setup.rank_user && setup.rank_user->uid == record.rank_uid) return setup.rank_user;
  return RankUserOf(record.rank_uid, record.rank_gid);
}

std::vector<Shipper::Source> Sources(const v1::Dispatch& dispatch) {
  std::vector<Shipper::Source> sources{{-1, "prepare"}, {kNodeStream, "node", /*log=*/false}};
  for (int i = 0; i < dispatch.slots_size(); ++i) {
    const int rank = dispatch.first_rank() + i;
    sources.push_back({rank, fmt::format("rank-{}", rank)});
  }
  return sources;
}

GangWatch::Options WatchOptions(const AttemptRecord& record, const AttemptServices& services) {
  const v1::Dispatch& dispatch = record.dispatch;
  GangWatch::Options options;
  options.attempt_dir = services.setup.AttemptDir(record.uid);
  options.gang = {services.setup.node, dispatch.world_size(), false,
                  LimitsOf(dispatch.resolved_json())};
  for (int i = 0; i < dispatch.slots_size(); ++i) {
    if (!services.inventory.IsGpu(dispatch.slots(i))) continue;
    options.gang.gpu = true;
    options.places[dispatch.first_rank() + i] = fmt::format("GPU {}", dispatch.slots(i));
  }
  return options;
}

}  // namespace

Attempt::Attempt(AttemptRecord record, const AttemptServices& services)
    : uid_(record.uid),
      job_id_(record.dispatch.job_id()),
      resume_step_(record.dispatch.resume().step()),
      epoch_(record.epoch),
      dir_(services.setup.AttemptDir(record.uid)),
      services_(services),
      fencing_(FencingLimit(record.dispatch.resolved_json(), services.setup.unreachable_after)),
      rank_user_(UserOf(record, services.setup)),
      watch_(WatchOptions(record, services), services.clock),
      shipper_({record.uid, record.epoch, services.setup.node, dir_, rank_user_},
               Sources(record.dispatch), services.server,
               [this](int rank, const channel::Event& event) { OnEvent(rank, event); }),
      staging_(kStagingLimit),
      live_shipping_(kLiveShippingLimit),
      shipping_(kShippingLimit),
      delivery_(kDeliveryLimit),
      checkpoints_({record.uid, record.epoch, record.dispatch.job_id(),
                    record.dispatch.slots_size() == record.dispatch.world_size(), rank_user_},
                   services.setup, services.server, services.clock, record.checkpoint_step,
                   {[this](int64_t step) { OnCheckpointRegistered(step); },
                    [this] { return ServerIsAway(); }, services.on_change}),
      record_(std::move(record)) {
  if (record_.launched && !record_.done) FindCheckpoints();
  const MutexLock lock(mutex_);
  if (record_.done) {
    state_ = v1::AttemptStatus::DONE;
  } else if (record_.has_verdict()) {
    state_ = v1::AttemptStatus::FINISHING;
  } else if (record_.launched) {
    state_ = v1::AttemptStatus::PREPARING;
  }
}

void Attempt::Direct(const v1::DesiredAttempt& desired) {
  const MutexLock lock(mutex_);
  server_spoke_ = true;
  // A stop is never taken back.
  if (intent_ == v1::DesiredAttempt::RUN &&
      desired.intent() != v1::DesiredAttempt::INTENT_UNSPECIFIED) {
    intent_ = desired.intent();
    intent_reason_ = desired.reason();
  }
  if (desired.intent() == v1::DesiredAttempt::FORGET) abandoned_ = true;
  checkpoints_wanted_ = std::max(checkpoints_wanted_, desired.checkpoints_asked());
  checkpoint_first_ = checkpoint_first_ || desired.checkpoint_first();
  checkpoint_patience_ = std::max(
      checkpoint_patience_, Nanos(std::chrono::seconds(desired.checkpoint_patience_seconds())));
  checkpoints_.Collect(desired.collect_checkpoint());
  if (abandoned_ || (desired.cancelled() && !desired.checkpoint_first())) checkpoints_.Drop();
  if (!desired.rendezvous().empty()) desired_rendezvous_ = desired.rendezvous();
}

void Attempt::Abandon(const std::string& reason, bool lasts) {
  const MutexLock lock(mutex_);
  abandoned_ = true;
  kept_ = kept_ || lasts;
  checkpoints_.Drop();
  if (intent_ != v1::DesiredAttempt::RUN) return;
  intent_ = v1::DesiredAttempt::STOP;
  intent_reason_ = reason;
}

v1::AttemptStatus Attempt::Status() const {
  const MutexLock lock(mutex_);
  v1::AttemptStatus status;
  status.set_attempt_uid(uid_);
  status.set_epoch(epoch_);
  status.set_state(state_);
  status.set_reason(reason_);
  status.set_stuck(stuck_);
  status.set_retrying(retrying_.empty() ? checkpoints_.retrying() : retrying_);
  if (state_ >= v1::AttemptStatus::READY) status.set_rendezvous(port_.endpoint());
  if (state_ >= v1::AttemptStatus::FINISHING) {
    *status.mutable_verdict() = record_.verdict;
    status.set_ended_us(record_.ended_us);
  }
  *status.mutable_progress() = progress_;
  if (!checkpoints_.whole()) {
    status.set_checkpoint_newest(checkpoints_.newest());
    status.set_checkpoint_settled(record_.checkpoint_step);
  }
  return status;
}

std::vector<std::string> Attempt::Blobs() const {
  std::vector<std::string> hashes;
  const MutexLock lock(mutex_);
  for (const v1::JobFileRef& file : record_.dispatch.files()) {
    if (!file.sha256().empty()) hashes.push_back(file.sha256());
  }
  return hashes;
}

int64_t Attempt::settled_step() const {
  const MutexLock lock(mutex_);
  return std::max(resume_step_, record_.checkpoint_step);
}

bool Attempt::Forgettable() const {
  const MutexLock lock(mutex_);
  return abandoned_ && !kept_ && state_ == v1::AttemptStatus::DONE;
}

bool Attempt::HasProcesses() const {
  const MutexLock lock(mutex_);
  return state_ >= v1::AttemptStatus::PREPARING && state_ <= v1::AttemptStatus::STOPPING;
}

bool Attempt::Stopping() const {
  const MutexLock lock(mutex_);
  return interrupted_ || intent_ != v1::DesiredAttempt::RUN;
}

void Attempt::Interrupt() {
  checkpoints_.Interrupt();
  const MutexLock lock(mutex_);
  interrupted_ = true;
}

void Attempt::Enter(State state, const std::string& reason) {
  {
    const MutexLock lock(mutex_);
    if (state_ == state && reason_ == reason) return;
    state_ = state;
    reason_ = reason;
  }
  spdlog::info("attempt {}: {}{}{}", uid_, v1::AttemptStatus::State_Name(state),
               reason.empty() ? "" : ": ", reason);
  services_.on_change();
}

void Attempt::Save() {
  const MutexLock save_lock(save_mutex_);
  AttemptRecord record;
  {
    const MutexLock lock(mutex_);
    record = record_;
  }
  // A full disk: a restart of the worker would look at the shim's files once more, nothing worse.
  const absl::Status saved = SaveRecord(record, dir_);
  if (!saved.ok()) spdlog::warn("attempt {}: {}", uid_, Message(saved));
}

void Attempt::Conclude(const v1::Verdict& verdict) {
  {
    const MutexLock lock(mutex_);
    record_.verdict = verdict;
    if (record_.ended_us == 0) record_.ended_us = UnixMicros(services_.clock.Wall());
    retrying_.clear();
    port_.Release();
  }
  Save();
  Enter(v1::AttemptStatus::FINISHING, verdict.message());
}

}  // namespace sft::worker
