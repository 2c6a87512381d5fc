#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/obs/histogram.h"
#include "server/database/readers.h"
#include "server/database/sqlite.h"
#include "server/store/audit.h"

namespace sft::server {

// The database behind one thread that owns the one connection that writes, and some that read.
// Callers of any thread hand in functions and block until they have run. Writes that wait together
// are committed together (group commit), each in its own savepoint: one that fails takes nothing of
// the others with it. A write has returned OK only after the commit has reached the disk
// (synchronous=FULL). A read runs in its caller's thread and sees all that was committed before.
class Store {
 public:
  struct Options {
    std::string path;  // of the database file
    // Writes waiting at once; more are refused with RESOURCE_EXHAUSTED.
    int max_queue = 4096;
    // Writes in one commit.
    int max_group = 64;
    // Reads at once; more wait.
    int readers = 4;
    // Off in a simulation: functions run at once in the caller's thread, of which there is one, and
    // on one connection.
    bool own_thread = true;
    // Take a copy of a database that was in use (database_mark.h), which is refused otherwise.
    bool accept_copy = false;
  };
  // Must not call the store again, wait, or do other I/O: it holds a connection.
  using Function = std::function<absl::Status(Database&)>;

  // Checks what is there before it is used.
  static absl::StatusOr<std::unique_ptr<Store>> Open(Options options);
  // In order: marks the database as closed.
  ~Store();
  Store(const Store&) = delete;

  // `audit`: the row of the call that makes the change; the first write of a call that succeeds has
  // it in its own transaction. Null: there is none.
  absl::Status Write(const Function& function, AuditRow* audit = nullptr) SFT_EXCLUDES(mutex_);
  absl::Status Read(const Function& function) SFT_EXCLUDES(mutex_);
  // On the connection that writes, between two transactions: for what must have that one.
  absl::Status ReadBetweenWrites(const Function& function) SFT_EXCLUDES(mutex_) {
    return Run(function, false);
  }

  // Commits that changed something, since it was opened.
  int64_t commits() const SFT_EXCLUDES(mutex_);
  // How long its commits took, from the first of their writes to the disk.
  const obs::Histogram& commit_seconds() const { return commit_seconds_; }
  // Another one once anything of the nodes, their GPUs or models was committed.
  int64_t fleet_version() const { return fleet_version_; }
  // Calls `then` after each commit of new events (feed.h), in the store's thread: it must be short.
  void WhenFed(std::function<void()> then) SFT_EXCLUDES(mutex_);

 private:
  struct Task {
    const Function* function = nullptr;
    bool is_write = false;
    absl::Status status;
    bool done = false;
    CondVar ended;
  };

  Store(Options options, std::unique_ptr<Database> db, std::unique_ptr<Readers> readers);
  absl::Status Run(const Function& function, bool is_write) SFT_EXCLUDES(mutex_);
  void Loop() SFT_EXCLUDES(mutex_);
  void RunGroup(const std::deque<Task*>& group);
  void RunWrites(const std::deque<Task*>& writes);

  // Constant after construction; db_ is used by thread_ alone.
  const Options options_;
  const std::unique_ptr<Database> db_;
  const std::unique_ptr<Readers> readers_;  // null without a thread

  mutable Mutex mutex_;
  CondVar work_;
  std::deque<Task*> queue_ SFT_GUARDED_BY(mutex_);
  bool closing_ SFT_GUARDED_BY(mutex_) = false;
  int64_t commits_ SFT_GUARDED_BY(mutex_) = 0;
  std::function<void()> when_fed_ SFT_GUARDED_BY(mutex_);
  std::atomic<int64_t> fleet_version_ = 0;
  obs::Histogram commit_seconds_;
  std::thread thread_;
};

}  // namespace sft::server
