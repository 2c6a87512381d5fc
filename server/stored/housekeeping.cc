#include "server/stored/housekeeping.h"

#include <spdlog/spdlog.h>

#include "common/obs/log.h"
#include "server/store/jobs.h"
#include "server/store/webhook_events.h"

namespace sft::server {

absl::Status Housekeeping::Tick(int64_t max_points) {
  if (thin_after_ <= Nanos(0)) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> jobs, metrics_.Jobs());
  // A curve that cannot be read does not hold up the others.
  absl::Status first_error;
  for (const std::string& id : jobs) first_error.Update(Thin(id, max_points));
  return first_error;
}

absl::Status Housekeeping::Thin(const std::string& id, int64_t max_points) {
  // By the wall clock, by which ends of jobs are stored; a jump of hours moves this by hours.
  const int64_t before = UnixMicros(clock_.Wall() - thin_after_);
  SFT_ASSIGN_OR_RETURN(const int64_t count, metrics_.Count(id));
  if (count <= max_points) return absl::OkStatus();
  bool old = false;
  const absl::Status known = store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const JobRecord job, store::GetJob(db, id));
    old = IsTerminal(job.state) && job.ended_us < before;
    return absl::OkStatus();
  });
  if (absl::IsNotFound(known)) return absl::OkStatus();  // not in a restored database
  SFT_RETURN_IF_ERROR(known);
  if (!old) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(tensorboard_.Thin(id, metrics_, max_points));
  SFT_ASSIGN_OR_RETURN(const int64_t left, metrics_.Count(id));
  if (left < count) spdlog::info("curve of {}: thinned from {} to {} points", id, count, left);
  return absl::OkStatus();
}

void Housekeeping::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void Housekeeping::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (!thread_.joinable()) return;
  thread_.join();
  LookAround();
}

void Housekeeping::TellLowDisk(const v1::NodeDisk& disk) {
  const bool low = disk.level() >= v1::NodeDisk::LOW;
  if (low && !low_) {
    const absl::Status told = store_.Write([&](Database& db) {
      return store::TellDisk(db, disk.free_bytes(), disk.total_bytes(), UnixMicros(clock_.Wall()));
    });
    if (!told.ok()) return;  // the next look tries again
  }
  low_ = low;
}

void Housekeeping::LookAround() {
  if (disk_ != nullptr) TellLowDisk(disk_->Look());  // which logs a change of level
  if (failed_ == nullptr) return;
  const absl::Status kept = failed_->Flush();
  if (!kept.ok()) spdlog::warn("calls that failed are not in the audit yet: {}", Message(kept));
}

void Housekeeping::Loop() {
  obs::NameThread("housekeeping");
  while (true) {
    absl::Status done = Tick();
    if (removal_ != nullptr) done.Update(removal_->Retain());
    if (!done.ok()) spdlog::warn("housekeeping: {}", Message(done));
    const MonoTime next = clock_.Mono() + kPeriod;
    while (clock_.Mono() < next) {
      LookAround();
      MutexLock lock(mutex_);
      if (!stopping_) changed_.WaitFor(mutex_, kShortPeriod);
      if (stopping_) return;
    }
  }
}

}  // namespace sft::server
