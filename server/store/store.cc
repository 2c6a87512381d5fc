#include "server/store/store.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "common/base/clock.h"
#include "common/base/duration.h"
#include "common/obs/log.h"
#include "server/database/database_check.h"
#include "server/database/migrations.h"

namespace sft::server {

absl::StatusOr<std::unique_ptr<Store>> Store::Open(Options options) {
  SFT_RETURN_IF_ERROR(CheckBeforeStart(options.path, options.accept_copy));
  SFT_ASSIGN_OR_RETURN(std::unique_ptr<Database> db, Database::Open(options.path));
  const absl::Status migrated = Migrate(*db, options.path);
  if (!migrated.ok()) return Annotate(migrated, options.path);
  SFT_RETURN_IF_ERROR(MarkInUse(*db, options.path));
  std::unique_ptr<Readers> readers;
  if (options.own_thread) {
    SFT_ASSIGN_OR_RETURN(readers, Readers::Open(options.path, options.readers));
  }
  return std::unique_ptr<Store>(new Store(std::move(options), std::move(db), std::move(readers)));
}

Store::Store(Options options, std::unique_ptr<Database> db, std::unique_ptr<Readers> readers)
    : options_(std::move(options)), db_(std::move(db)), readers_(std::move(readers)) {
  if (options_.own_thread) thread_ = std::thread([this] { Loop(); });
}

Store::~Store() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
  }
  work_.NotifyAll();
  if (thread_.joinable()) thread_.join();
  const absl::Status marked = MarkClosed(*db_);
  if (marked.ok()) return;
  // Its log is the proof that it was not put there.
  db_->KeepLog();
  spdlog::error(
      "closing the database: {}: it stays as one in use, and the next start looks at all of it",
      Message(marked));
}

int64_t Store::commits() const {
  MutexLock lock(mutex_);
  return commits_;
}

void Store::WhenFed(std::function<void()> then) {
  MutexLock lock(mutex_);
  when_fed_ = std::move(then);
}

absl::Status Store::Write(const Function& function, AuditRow* audit) {
  if (audit == nullptr || audit->written) return Run(function, true);
  const absl::Status status = Run(
      [&](Database& db) -> absl::Status {
        SFT_RETURN_IF_ERROR(function(db));
        return store::InsertAudit(db, audit->record);
      },
      true);
  audit->written = status.ok();
  return status;
}

absl::Status Store::Read(const Function& function) {
  return readers_ == nullptr ? Run(function, false) : readers_->Run(function);
}

absl::Status Store::Run(const Function& function, bool is_write) {
  Task task;
  task.function = &function;
  task.is_write = is_write;
  if (!options_.own_thread) {
    RunGroup({&task});
    return task.status;
  }
  MutexLock lock(mutex_);
  if (closing_) return Unavailable("the server is stopping");
  if (static_cast<int>(queue_.size()) >= options_.max_queue) {
    return ResourceExhausted(
        fmt::format("{} requests wait for the database: try again later", queue_.size()));
  }
  queue_.push_back(&task);
  work_.NotifyOne();
  while (!task.done) task.ended.Wait(mutex_);
  return task.status;
}

void Store::Loop() {
  obs::NameThread("store");
  while (true) {
    std::deque<Task*> group;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !closing_) work_.Wait(mutex_);
      if (queue_.empty()) return;
      while (!queue_.empty() && static_cast<int>(group.size()) < options_.max_group) {
        group.push_back(queue_.front());
        queue_.pop_front();
      }
    }
    RunGroup(group);
    MutexLock lock(mutex_);
    for (Task* task : group) {
      task->done = true;
      task->ended.NotifyOne();
    }
  }
}

// Each of a group is of another caller, so none of them waited for another: reads go first, and all
// writes share one commit.
void Store::RunGroup(const std::deque<Task*>& group) {
  std::deque<Task*> writes;
  for (Task* task : group) {
    if (task->is_write) {
      writes.push_back(task);
    } else {
      task->status = (*task->function)(*db_);
    }
  }
  RunWrites(writes);
}

void Store::RunWrites(const std::deque<Task*>& writes) {
  if (writes.empty()) return;
  const int64_t changes = db_->total_changes(), feed_changes = db_->feed_changes();
  const MonoTime begin = Clock::Real().Mono();
  absl::Status group = db_->Run("BEGIN IMMEDIATE");
  for (Task* task : writes) {
    if (!group.ok()) break;
    group = db_->Run("SAVEPOINT task");
    if (!group.ok()) break;
    task->status = (*task->function)(*db_);
    if (!task->status.ok()) group = db_->Run("ROLLBACK TO task");
    if (group.ok()) group = db_->Run("RELEASE task");
  }
  if (group.ok()) group = db_->Run("COMMIT");
  if (group.ok()) {
    fleet_version_ = db_->fleet_changes();
    if (db_->total_changes() == changes) return;
    commit_seconds_.Observe(SecondsOf(Clock::Real().Mono() - begin));
    std::function<void()> then;
    {
      MutexLock lock(mutex_);
      ++commits_;
      if (db_->feed_changes() != feed_changes) then = when_fed_;
    }
    if (then) then();
    return;
  }
  // A full disk may have ended the transaction already; a rollback that finds none is no news.
  const absl::Status undone = db_->Run("ROLLBACK");
  spdlog::error("commit failed: {} (rollback: {})", Message(group), Message(undone));
  for (Task* task : writes) {
    if (task->status.ok()) task->status = group;
  }
}

}  // namespace sft::server
