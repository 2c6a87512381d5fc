// Disk faults: a disk that is full from the n-th write on, or whose n-th sync fails, for every n.
// Acknowledged data exists afterwards, failed calls gave the reason, and with space again
// everything goes on. Calls of this whole program are covered, SQLite's included: the functions
// below replace the C library's.

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "common/io/sha256.h"
#include "server/blob/blob_store.h"
#include "server/gangs/ingest.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace {

enum class Fault { kNone, kDiskFull, kSyncFails };

std::atomic<Fault> fault{Fault::kNone};
std::atomic<int> countdown{0};  // calls left until the fault
std::string disk;               // the fault hits files below this folder

bool OnDisk(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof(path) - 1);
  return size > 0 && std::string_view(path, static_cast<size_t>(size)).starts_with(disk);
}

// How much of a write the disk still takes: the first failing one is cut in the middle.
size_t Room(int fd, size_t size) {
  if (fault != Fault::kDiskFull || !OnDisk(fd)) return size;
  const int left = --countdown;
  return left > 0 ? size : left == 0 ? size / 2 : 0;
}

ssize_t LimitedWrite(int fd, const void* data, size_t size, off_t offset, bool positioned) {
  const size_t room = Room(fd, size);
  if (room == 0 && size > 0) {
    errno = ENOSPC;
    return -1;
  }
  return positioned ? syscall(SYS_pwrite64, fd, data, room, offset)
                    : syscall(SYS_write, fd, data, room);
}

// There is no power failure here, so a real sync is not needed.
int FaultySync(int fd) {
  if (fault == Fault::kSyncFails && OnDisk(fd) && --countdown == 0) {
    errno = EIO;
    return -1;
  }
  return 0;
}

}  // namespace

extern "C" {
ssize_t write(int fd, const void* data, size_t size) {
  return LimitedWrite(fd, data, size, 0, false);
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return LimitedWrite(fd, data, size, offset, true);
}
ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  return LimitedWrite(fd, data, size, offset, true);
}
int fsync(int fd) { return FaultySync(fd); }
int fdatasync(int fd) { return FaultySync(fd); }
}

namespace sft::server {
namespace {

constexpr int kPieces = 4;

// A client's and a worker's calls in turn, and the data acknowledged to them.
class FaultTest : public FleetTest {
 protected:
  struct Acknowledged {
    bool job = false, blob = false;
    int64_t log = 0, steps = 0;
    bool log_ended = false;
  };
  struct Files {
    explicit Files(FaultTest& test)
        : logs(test.dir_ + "/logs"),
          metrics(test.dir_ + "/metrics"),
          tensorboard(test.dir_ + "/tensorboard"),
          ingest(*test.store_, test.clock_, logs, metrics, tensorboard, test.hub_) {}
    LogStore logs;
    MetricLog metrics;
    TensorBoard tensorboard;
    Ingest ingest;
  };

  static std::string Piece(int64_t number) {
    return std::string(700, static_cast<char>('a' + number));
  }

  void Check(const absl::Status& status) {
    if (status.ok()) return;
    ++failures_;
    if (fault == Fault::kDiskFull) {
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    }
  }
  void SubmitIt() {
    JobRecord job;
    job.id = "job-x";
    job.project = "default";
    job.gpu_type = "CPU";
    job.spec.emplace();
    job.request_id = "request";
    const auto submitted = jobs_->Submit(job, {});
    Check(submitted.status());
    acknowledged_.job = acknowledged_.job || submitted.ok();
  }
  void ShipIt(Ingest& ingest, const std::string& uid) {
    for (int64_t number = 0; number < kPieces; ++number) {
      v1::AppendLogRequest log;
      log.set_attempt_uid(uid);
      log.set_epoch(1);
      log.set_node("a");
      log.set_offset(number * 700);
      log.set_data(Piece(number));
      log.set_end_of_file(number + 1 == kPieces);
      const auto logged = ingest.AppendLog(log);
      Check(logged.status());
      if (logged.ok()) {
        acknowledged_.log = std::max(acknowledged_.log, logged->offset());
        acknowledged_.log_ended |= log.end_of_file() && logged->offset() == kPieces * 700;
      }
      v1::AppendEventsRequest events;
      events.set_attempt_uid(uid);
      events.set_epoch(1);
      events.set_node("a");
      events.set_begin_offset(number * 10);
      events.set_end_offset(number * 10 + 10);
      events.add_events()->mutable_metric()->set_step(number + 1);
      const auto taken = ingest.AppendEvents(events);
      Check(taken.status());
      if (taken.ok()) acknowledged_.steps = std::max(acknowledged_.steps, taken->offset() / 10);
    }
  }
  void UploadIt() {
    const std::string content(5000, 'b');
    auto blobs = BlobStore::Open(dir_ + "/blobs");
    Check(blobs.status());
    if (!blobs.ok()) return;
    const std::string hash = io::Sha256Hex(content);
    const auto stat = (*blobs)->Find(hash);
    if (!stat.ok()) return;
    // As a client does, which asks first whether the blob is there.
    acknowledged_.blob = acknowledged_.blob || stat->complete;
    if (stat->complete) return;
    auto upload = (*blobs)->Begin(hash, 5000, stat->received);
    Check(upload.status());
    if (!upload.ok()) return;
    absl::Status status = (*upload)->Append(content.substr(static_cast<size_t>(stat->received)));
    if (status.ok())
      status = (*upload)->Finish([](const std::string&) { return absl::OkStatus(); });
    Check(status);
    acknowledged_.blob = acknowledged_.blob || status.ok();
  }
  // Makes every call once; failed ones are not repeated.
  void Scenario() {
    auto worker = std::make_shared<FakeWorker>();
    Check(registry_->Connect(RegisterOf("a", "CPU", 1), worker));
    SubmitIt();
    Check(reconciler_->Tick());
    Files files(*this);
    const auto job = jobs_->Get("job-x");
    if (job.ok() && job->attempt() > 0) {
      Check(registry_->Observe("a", worker.get(), ObservedOf(Uid("job-x"))));
      ShipIt(files.ingest, Uid("job-x"));
    }
    UploadIt();
  }
  static v1::Observed ObservedOf(const std::string& uid) {
    v1::Observed observed;
    *observed.add_attempts() = StatusOf(uid, v1::AttemptStatus::RUNNING);
    return observed;
  }
  void CheckAcknowledged() {
    if (acknowledged_.job) {
      ASSERT_TRUE(jobs_->Get("job-x").ok());
    }
    Files files(*this);
    if (acknowledged_.log > 0) {
      const std::string stream = LogStore::RankStream(Uid("job-x"), 0);
      const std::string bytes = files.logs.Read(stream, 0, 1 << 20)->bytes;
      ASSERT_GE(static_cast<int64_t>(bytes.size()), acknowledged_.log);
      for (size_t i = 0; i < bytes.size(); ++i)
        ASSERT_EQ(bytes[i], Piece(static_cast<int64_t>(i) / 700)[0]);
    }
    ASSERT_GE(files.metrics.Count("job-x").value(), acknowledged_.steps);
    if (acknowledged_.blob) {
      const std::string hash = io::Sha256Hex(std::string(5000, 'b'));
      ASSERT_TRUE(BlobStore::Open(dir_ + "/blobs").value()->PathOf(hash).ok());
    }
  }
  void CheckAllDone() {
    EXPECT_TRUE(acknowledged_.job && acknowledged_.blob && acknowledged_.log_ended);
    EXPECT_EQ(acknowledged_.log, kPieces * 700);
    Files files(*this);
    const auto points = files.metrics.Read("job-x", 0, 100).value();
    ASSERT_EQ(points.size(), static_cast<size_t>(kPieces));
    for (int i = 0; i < kPieces; ++i) EXPECT_EQ(points[static_cast<size_t>(i)].step, i + 1);
  }
  // Runs with the fault at the n-th call, ends the server as by kill -9, then continues without the
  // fault. False when the fault was not reached.
  bool RunWith(Fault kind, int n) {
    Halt();
    EXPECT_TRUE(io::RemoveAll(dir_).ok());
    EXPECT_TRUE(io::MakeDirs(dir_).ok());
    Boot();
    acknowledged_ = {};
    failures_ = 0;
    disk = dir_;
    countdown = n;
    fault = kind;
    Scenario();
    const bool reached = countdown <= 0;
    fault = Fault::kNone;
    Halt();
    Boot();
    CheckAcknowledged();
    failures_ = 0;
    Scenario();
    EXPECT_EQ(failures_, 0);
    CheckAllDone();
    return reached;
  }

  Acknowledged acknowledged_;
  int failures_ = 0;
};

TEST_F(FaultTest, ADiskThatIsFullFromAnyWriteOnLosesNothingAcknowledged) {
  int n = 1;
  for (; !HasFailure() && RunWith(Fault::kDiskFull, n); ++n) {
  }
  EXPECT_GT(n, 30) << "writes that were made to fail";
  RecordProperty("writes", n);
}

TEST_F(FaultTest, SlotsAndModelsReportedWhileTheDiskWasFullAreStoredLater) {
  const auto worker = Join("a", "H100", 2);
  v1::Observed news;
  *news.mutable_slots() = RegisterOf("a", "H100", 2).slots();
  news.mutable_slots(1)->set_healthy(false);
  news.mutable_slots(1)->set_health_reason("it fell off the bus");
  news.add_models()->set_id("fresh");
  disk = dir_;
  countdown = 1;
  fault = Fault::kDiskFull;
  EXPECT_FALSE(registry_->Observe("a", worker.get(), news).ok());
  fault = Fault::kNone;
  // Unchanged models are not sent again.
  news.clear_models();
  ASSERT_TRUE(registry_->Observe("a", worker.get(), news).ok());
  ASSERT_TRUE(store_
                  ->Read([&](Database& db) -> absl::Status {
                    SFT_ASSIGN_OR_RETURN(const NodeRecord node, store::GetNode(db, "a"));
                    EXPECT_FALSE(node.slots[1].healthy);
                    SFT_ASSIGN_OR_RETURN(const auto models, store::ListModels(db, 0, 10));
                    EXPECT_EQ(models.size(), 1u);
                    return absl::OkStatus();
                  })
                  .ok());
}

TEST_F(FaultTest, ASyncThatFailsAnywhereLosesNothingAcknowledged) {
  int n = 1;
  for (; !HasFailure() && RunWith(Fault::kSyncFails, n); ++n) {
  }
  EXPECT_GT(n, 10) << "syncs that were made to fail";
  RecordProperty("syncs", n);
}

}  // namespace
}  // namespace sft::server
