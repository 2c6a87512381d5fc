#include "server/stored/housekeeping.h"

#include <spdlog/spdlog.h>

#include "common/obs/log.h"
#include "server/store/feed.h"
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

void Housekeeping::NoteDisk(const v1::NodeDisk& disk) {
  const bool known = disk.level() != v1::NodeDisk::LEVEL_UNSPECIFIED;
  if (!known || disk.level() == disk_level_) return;
  disk_level_ = disk.level();
  store::FeedEvent event;
  event.time_us = UnixMicros(clock_.Wall());
  event.subject = "server";
  event.type = "disk";
  const std::string warning = disk_->Warning();
  event.message = warning.empty() ? "there is room on the server's disk again" : warning;
  const absl::Status noted =
      store_.Write([&](Database& db) { return store::FeedOther(db, event); });
  // On a full disk it may have to wait for the next change; the log has it all the same.
  if (!noted.ok()) spdlog::warn("event about the disk: {}", Message(noted));
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
  if (disk_ != nullptr) {
    const v1::NodeDisk disk = disk_->Look();
    NoteDisk(disk);
    TellLowDisk(disk);
  }
  if (gpus_ != nullptr) {
    const absl::Status flushed = gpus_->Flush(UnixMicros(clock_.Wall()));
    if (!flushed.ok()) spdlog::warn("use of GPUs: {}", Message(flushed));
  }
  if (failed_ == nullptr) return;
  const absl::Status kept = failed_->Flush();
  if (!kept.ok()) spdlog::warn("calls that failed are not in the audit yet: {}", Message(kept));
}

void Housekeeping::Loop() {
  obs::NameThread("housekeeping");
  while (true) {
    absl::Status done = Tick();
    if (removal_ != nullptr) done.Update(removal_->Retain());
    if (tidy_hooks_ != nullptr) done.Update(tidy_hooks_());
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
