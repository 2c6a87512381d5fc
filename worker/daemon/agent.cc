#include "worker/daemon/agent.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "common/hub/model_name.h"
#include "common/io/file.h"
#include "common/io/paths.h"
#include "worker/attempt/verdict.h"
#include "worker/base/disk.h"
#include "worker/base/serve_sockets.h"
#include "worker/node/removed_models.h"
#include "worker/transfer/checkpoint_folder.h"

namespace sft::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Interval between reads of a live shim's status.
constexpr milliseconds kWatchInterval{100};
constexpr seconds kNoLiveInterval{2};

bool IsFolderName(const std::string& uid) {
  return io::IsSafeRelative(uid) && uid.find('/') == std::string::npos && uid.size() <= 64;
}

}  // namespace

namespace {

v1::ModelDownload DownloadToProto(const ModelStore::Download& download) {
  v1::ModelDownload proto;
  proto.set_id(download.name.id);
  proto.set_commit(download.name.revision);
  proto.set_bytes_done(download.progress.bytes_done);
  proto.set_bytes_total(download.progress.bytes_total);
  proto.set_bytes_per_second(download.bytes_per_second);
  proto.set_problem(download.problem);
  proto.set_text(download.text);
  return proto;
}

}  // namespace

Agent::Agent(Options options, const NodeSetup& setup, Stager& stager, Inventory& inventory,
             ServerApi& server, ShimHost& shims, Clock& clock,
             std::function<absl::StatusOr<std::string>()> torch_lib_dir)
    : options_(options),
      setup_(setup),
      services_{setup, stager, inventory, server, shims, clock, std::move(torch_lib_dir), [this] {
                  NotifyChange();
                }} {}

Agent::~Agent() {
  std::map<std::string, Entry> attempts;
  {
    const MutexLock lock(mutex_);
    attempts.swap(attempts_);
  }
  for (auto& [uid, entry] : attempts) entry.attempt->Interrupt();
  for (auto& [uid, entry] : attempts) {
    entry.io.reset();
    entry.checkpoint_io.reset();
    entry.judges.reset();
  }
}

absl::Status Agent::Load() {
  const std::string dir = setup_.data_dir + "/attempts";
  SFT_RETURN_IF_ERROR(io::MakeDirs(dir));
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(dir));
  for (const std::string& name : names) {
    absl::StatusOr<AttemptRecord> record = LoadRecord(dir + "/" + name);
    if (absl::IsNotFound(record.status())) {
      // The worker died before the attempt's first record: nothing was started.
      SFT_RETURN_IF_ERROR(io::RemoveAll(dir + "/" + name));
      continue;
    }
    if (!record.ok()) {
      return Annotate(record.status(), "see whether ranks of it still run, then remove the folder");
    }
    spdlog::info("attempt {}: found on disk", name);
    Add(*std::move(record));
  }
  return absl::OkStatus();
}

void Agent::Add(AttemptRecord record) {
  Entry entry;
  const std::string uid = record.uid;
  entry.attempt = std::make_unique<Attempt>(std::move(record), services_);
  if (options_.io_threads) {
    Attempt* attempt = entry.attempt.get();
    entry.io = std::make_unique<IoThread>("io " + uid, [attempt] { return attempt->Io(); });
    entry.checkpoint_io =
        std::make_unique<IoThread>("checkpoints", [attempt] { return attempt->CheckpointIo(); });
    if (attempt->AsksJudges()) {
      entry.judges = std::make_unique<JudgeDesk>(setup_, services_.server, uid, attempt->epoch());
    }
  }
  const MutexLock lock(mutex_);
  attempts_[uid] = std::move(entry);
}

void Agent::OnDesired(const v1::Desired& desired) {
  const MutexLock lock(mutex_);
  desired_ = desired;
  step_wanted_ = true;
  changed_.NotifyAll();
}

void Agent::StopAll(const std::string& reason) {
  const MutexLock lock(mutex_);
  refused_ = reason;
  for (const auto& [uid, entry] : attempts_) {
    spdlog::error("attempt {} is abandoned: {}; what it made stays in {}", uid, reason,
                  setup_.AttemptDir(uid));
  }
  step_wanted_ = true;
  changed_.NotifyAll();
}

void Agent::ServerHeard(MonoTime at) {
  const MutexLock lock(mutex_);
  heard_ = std::max(heard_, at);
}

MonoTime Agent::Heard() const {
  const MutexLock lock(mutex_);
  return heard_;
}

void Agent::SetRankProblem(const std::string& problem) {
  const MutexLock lock(mutex_);
  if (rank_problem_ == problem) return;
  rank_problem_ = problem;
  ++version_;
  changed_.NotifyAll();
}

std::string Agent::RankProblem() const {
  const MutexLock lock(mutex_);
  return rank_problem_;
}

void Agent::SetRankBuild(const std::string& build) {
  const MutexLock lock(mutex_);
  if (rank_build_ == build) return;
  rank_build_ = build;
  ++version_;
  changed_.NotifyAll();
}

std::string Agent::RankBuild() const {
  const MutexLock lock(mutex_);
  return rank_build_;
}

bool Agent::Leave(const std::string& why) {
  const MutexLock lock(mutex_);
  if (!leaving_.empty()) return false;
  spdlog::info("leaving the fleet: {}", why);
  leaving_ = why;
  ++version_;
  changed_.NotifyAll();
  return true;
}

std::string Agent::Leaving() const {
  const MutexLock lock(mutex_);
  return leaving_;
}

bool Agent::HasAttempts() const {
  const MutexLock lock(mutex_);
  return !attempts_.empty();
}

void Agent::SetModels(std::vector<v1::Model> models) {
  v1::Observed before, after;
  const MutexLock lock(mutex_);
  before.mutable_models()->Add(models_.begin(), models_.end());
  after.mutable_models()->Add(models.begin(), models.end());
  if (before.SerializeAsString() == after.SerializeAsString()) return;
  models_ = std::move(models);
  ++models_version_;
  ++version_;
  changed_.NotifyAll();
}

std::vector<v1::Model> Agent::Models() const {
  const MutexLock lock(mutex_);
  return models_;
}

DataInUse Agent::InUse() const {
  DataInUse in_use;
  const MutexLock lock(mutex_);
  for (const auto& [uid, entry] : attempts_) {
    for (std::string& sha256 : entry.attempt->Blobs()) in_use.blobs.insert(std::move(sha256));
    const std::optional<WallTime> since = LastUse(setup_.AttemptDir(uid) + "/launch.json");
    if (since && (!in_use.cache_since || *since < *in_use.cache_since)) in_use.cache_since = since;
  }
  return in_use;
}

std::set<std::string> Agent::ModelsInUse() const {
  std::set<std::string> ids;
  const MutexLock lock(mutex_);
  for (const auto& [uid, entry] : attempts_) {
    if (const auto name = hub::ParseModelName(entry.attempt->Model())) ids.insert(name->id);
  }
  return ids;
}

v1::Observed Agent::Observe(uint64_t& models_since) const {
  v1::Observed observed;
  if (downloads_) {
    for (const ModelStore::Download& each : downloads_()) {
      *observed.add_downloads() = DownloadToProto(each);
    }
  }
  for (v1::Slot& slot : services_.inventory.Slots()) *observed.add_slots() = std::move(slot);
  *observed.mutable_disk() = MeasureDisk(setup_);
  observed.set_time_us(UnixMicros(services_.clock.Wall()));
  const MutexLock lock(mutex_);
  observed.set_rank_problem(rank_problem_);
  observed.set_rank_build(rank_build_);
  observed.set_leaving(leaving_);
  for (const auto& [uid, entry] : attempts_) *observed.add_attempts() = entry.attempt->Status();
  for (const auto& [uid, epoch] : missing_) {
    v1::AttemptStatus& status = *observed.add_attempts();
    status.set_attempt_uid(uid);
    status.set_epoch(epoch);
    status.set_state(v1::AttemptStatus::MISSING);
  }
  if (models_since != models_version_) {
    observed.mutable_models()->Add(models_.begin(), models_.end());
    models_since = models_version_;
  }
  return observed;
}

bool Agent::WaitForChange(uint64_t& seen, Nanos timeout) {
  const MutexLock lock(mutex_);
  if (seen == version_ && timeout > Nanos(0)) changed_.WaitFor(mutex_, timeout);
  const bool changed = seen != version_;
  seen = version_;
  return changed;
}

void Agent::NotifyChange() {
  const MutexLock lock(mutex_);
  ++version_;
  step_wanted_ = true;
  for (auto& [uid, entry] : attempts_) {
    if (entry.io != nullptr) entry.io->Wake();
    if (entry.checkpoint_io != nullptr) entry.checkpoint_io->Wake();
  }
  changed_.NotifyAll();
}

void Agent::Apply(const v1::Desired& desired) {
  std::set<std::string> wanted;
  std::map<std::string, int64_t> missing;
  for (const v1::DesiredAttempt& attempt : desired.attempts()) {
    const std::string& uid = attempt.attempt_uid();
    if (!IsFolderName(uid)) {
      spdlog::error("the server sent \"{}\" as an attempt: ignored", uid);
      continue;
    }
    Attempt* known = nullptr;
    {
      const MutexLock lock(mutex_);
      const auto found = attempts_.find(uid);
      if (found != attempts_.end()) known = found->second.attempt.get();
    }
    if (known != nullptr && known->epoch() == attempt.epoch()) {
      wanted.insert(uid);
      known->Direct(attempt);
    } else if (known == nullptr && attempt.intent() == v1::DesiredAttempt::RUN &&
               attempt.has_dispatch()) {
      wanted.insert(uid);
      Accept(attempt);
    } else if (attempt.intent() != v1::DesiredAttempt::FORGET) {
      missing[uid] = attempt.epoch();
    }
  }
  const MutexLock lock(mutex_);
  missing_ = std::move(missing);
  for (auto& [uid, entry] : attempts_) {
    if (!wanted.contains(uid)) entry.attempt->Abandon("the server no longer knows this attempt");
  }
}

void Agent::CleanCheckpoints(bool is_news) {
  LiveJobs live_jobs;
  {
    const MutexLock lock(mutex_);
    for (const auto& [uid, entry] : attempts_) {
      // A DONE attempt counts too: a set that was sent before its last checkpoint was committed
      // does not name that checkpoint. The server orders FORGET only once it knows.
      const int64_t settled = entry.attempt->settled_step();
      const auto [job, first] = live_jobs.try_emplace(entry.attempt->job_id());
      job->second.in_use.insert(entry.attempt->resume_step());
      job->second.settled = first ? settled : std::min(job->second.settled, settled);
    }
  }
  // Steps settled since the set arrived may be cleaned by it too; for a job that is gone or new
  // here only another set can decide.
  if (!is_news && !HaveSettled(cleaned_, live_jobs)) return;
  cleaned_ = live_jobs;
  const absl::Status cleaned = worker::CleanCheckpoints(kept_, live_jobs, setup_);
  if (!cleaned.ok()) spdlog::error("checkpoints: {}", Message(cleaned));
}

void Agent::CleanModels(const v1::Desired& desired) {
  std::set<std::string> live_jobs;
  {
    const MutexLock lock(mutex_);
    for (const auto& [uid, entry] : attempts_) {
      if (entry.attempt->Status().state() != v1::AttemptStatus::DONE) {
        live_jobs.insert(entry.attempt->job_id());
      }
    }
  }
  const absl::Status removed = RemoveModels(desired, live_jobs, setup_);
  if (!removed.ok()) spdlog::error("removed models: {}", Message(removed));
}

void Agent::Accept(const v1::DesiredAttempt& desired) {
  AttemptRecord record;
  record.uid = desired.attempt_uid();
  record.epoch = desired.epoch();
  record.dispatch = desired.dispatch();
  absl::Status saved = LetRanksWrite(setup_.AttemptDir(record.uid), setup_.rank_user);
  if (saved.ok()) saved = SaveRecord(record, setup_.AttemptDir(record.uid));
  // Without a record it must not start; it is kept in memory to tell the server why.
  if (!saved.ok()) record.verdict = MakeStartVerdict(saved, setup_.node);
  spdlog::info("attempt {} of job {}: {} ranks from rank {} on", record.uid,
               record.dispatch.job_id(), record.dispatch.slots_size(),
               record.dispatch.first_rank());
  Add(std::move(record));
}

void Agent::RemoveForgotten() {
  std::vector<std::pair<std::string, Entry>> forgotten;
  {
    const MutexLock lock(mutex_);
    for (auto it = attempts_.begin(); it != attempts_.end();) {
      if (it->second.attempt->Forgettable()) {
        forgotten.emplace_back(it->first, std::move(it->second));
        it = attempts_.erase(it);
      } else {
        ++it;
      }
    }
  }
  for (auto& [uid, entry] : forgotten) {
    entry.attempt->Interrupt();
    entry.io.reset();
    entry.checkpoint_io.reset();
    const absl::Status removed = io::RemoveAll(setup_.AttemptDir(uid));
    if (!removed.ok()) spdlog::error("attempt {}: {}", uid, Message(removed));
    for (const std::string& socket : ServeSocketsThere(setup_, uid)) (void)io::RemoveAll(socket);
    spdlog::info("attempt {}: forgotten", uid);
  }
  if (!forgotten.empty()) NotifyChange();
}

Nanos Agent::Step() {
  std::optional<v1::Desired> desired;
  MonoTime heard;
  std::string refused;
  {
    const MutexLock lock(mutex_);
    desired.swap(desired_);
    step_wanted_ = false;
    heard = heard_;
    refused = refused_;
  }
  if (refused.empty() && desired) {
    Apply(*desired);
    if (desired->has_checkpoints()) {
      kept_ = desired->checkpoints();
      CleanCheckpoints(/*is_news=*/true);
    }
    if (desired->removed_models_size() > 0) CleanModels(*desired);
    NotifyChange();
  }
  std::vector<Attempt*> attempts;
  {
    const MutexLock lock(mutex_);
    for (auto& [uid, entry] : attempts_) attempts.push_back(entry.attempt.get());
  }
  bool live = false;
  for (Attempt* attempt : attempts) {
    if (!refused.empty()) attempt->Abandon(refused, /*lasts=*/true);
    attempt->Control(heard);
    live = live || attempt->HasProcesses();
  }
  if (refused.empty()) CleanCheckpoints(/*is_news=*/false);
  RemoveForgotten();
  return live ? Nanos(kWatchInterval) : Nanos(kNoLiveInterval);
}

void Agent::WaitForStep(Nanos timeout) {
  const MutexLock lock(mutex_);
  if (!step_wanted_) changed_.WaitFor(mutex_, timeout);
}

void Agent::StepIo() {
  std::vector<Attempt*> attempts;
  {
    const MutexLock lock(mutex_);
    for (auto& [uid, entry] : attempts_) attempts.push_back(entry.attempt.get());
  }
  for (Attempt* attempt : attempts) {
    attempt->Io();
    attempt->CheckpointIo();
  }
}

}  // namespace sft::worker
