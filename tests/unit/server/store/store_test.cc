#include "server/store/store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <functional>
#include <thread>

#include "common/io/file.h"
#include "server/database/data_dir_lock.h"
#include "server/database/database_check.h"
#include "server/database/migrations.h"
#include "server/database/online_copy.h"

namespace sft::server {
namespace {

class StoreTest : public testing::Test {
 protected:
  StoreTest() : dir_(io::MakeTempDir("store-test").value()) {}
  ~StoreTest() override { (void)io::RemoveAll(dir_); }
  std::string DbPath() const { return dir_ + "/server.db"; }
  std::unique_ptr<Store> Open() { return Store::Open({DbPath()}).value(); }

  static int64_t Count(Store& store, const char* sql) {
    int64_t count = -1;
    EXPECT_TRUE(store
                    .Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(Statement get, db.Prepare(sql));
                      SFT_ASSIGN_OR_RETURN(const bool row, get.Step());
                      if (row) count = get.Int(0);
                      return absl::OkStatus();
                    })
                    .ok());
    return count;
  }

  const std::string dir_;
};

constexpr char kCountVariants[] = "SELECT count(*) FROM variants";

absl::Status AddVariant(Database& db, const char* name, int n) {
  SFT_ASSIGN_OR_RETURN(Statement add, db.Prepare("INSERT INTO variants VALUES (?, 'X', ?)"));
  return add.Bind(name).Bind(n).Run();
}

TEST_F(StoreTest, TheFirstMigrationHasTheTwoVariantsOfTheSourceDocuments) {
  auto store = Open();
  EXPECT_EQ(Count(*store, "SELECT count(*) FROM variants WHERE name IN ('H100-4x', 'H100-8x')"), 2);
}

TEST_F(StoreTest, WhatWasWrittenIsThereAfterReopening) {
  ASSERT_TRUE(Open()->Write([](Database& db) { return AddVariant(db, "X-1x", 1); }).ok());
  auto store = Open();
  EXPECT_EQ(Count(*store, kCountVariants), 3);
}

TEST_F(StoreTest, AFailedWriteLeavesNothingAndItsNeighboursStay) {
  auto store = Open();
  EXPECT_TRUE(absl::IsAborted(store->Write([](Database& db) -> absl::Status {
    SFT_RETURN_IF_ERROR(AddVariant(db, "X-1x", 1));
    return Aborted("changed my mind");
  })));
  EXPECT_TRUE(store->Write([](Database& db) { return AddVariant(db, "X-2x", 2); }).ok());
  EXPECT_EQ(Count(*store, "SELECT count(*) FROM variants WHERE name = 'X-1x'"), 0);
  EXPECT_EQ(Count(*store, "SELECT count(*) FROM variants WHERE name = 'X-2x'"), 1);
}

TEST_F(StoreTest, AConstraintIsAlreadyExists) {
  auto store = Open();
  EXPECT_TRUE(absl::IsAlreadyExists(
      store->Write([](Database& db) { return AddVariant(db, "H100-4x", 9); })));
}

TEST_F(StoreTest, WritesOfManyThreadsAreAllThereInFewerCommits) {
  auto store = Open();
  constexpr int kThreads = 8, kEach = 20;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const int n = t * kEach + i + 1;
        const std::string name = "X-" + std::to_string(n) + "x";
        EXPECT_TRUE(
            store->Write([&](Database& db) { return AddVariant(db, name.c_str(), n); }).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Count(*store, kCountVariants), 2 + kThreads * kEach);
  EXPECT_LE(store->commits(), kThreads * kEach);
}

TEST_F(StoreTest, AFullDiskIsResourceExhaustedAndTheStoreGoesOn) {
  auto store = Open();
  const absl::Status full = store->Write([](Database& db) -> absl::Status {
    SFT_RETURN_IF_ERROR(db.Execute("PRAGMA max_page_count = 1"));
    SFT_ASSIGN_OR_RETURN(Statement add, db.Prepare("INSERT INTO variants VALUES (?, 'X', 1)"));
    return add.Bind(std::string(1 << 20, 'x')).Run();
  });
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  ASSERT_TRUE(store
                  ->ReadBetweenWrites(
                      [](Database& db) { return db.Execute("PRAGMA max_page_count = 100000"); })
                  .ok());
  EXPECT_TRUE(store->Write([](Database& db) { return AddVariant(db, "X-2x", 2); }).ok());
  EXPECT_EQ(Count(*store, kCountVariants), 3);
}

TEST_F(StoreTest, AFullQueueIsRefused) {
  auto store = Store::Open({DbPath(), /*max_queue=*/0}).value();
  EXPECT_TRUE(absl::IsResourceExhausted(store->Write([](Database&) { return absl::OkStatus(); })));
}

TEST_F(StoreTest, AReadSeesOneMomentAndWaitsForNoWrite) {
  auto store = Open();
  const absl::Status read = store->Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(Statement before, db.Prepare(kCountVariants));
    SFT_ASSIGN_OR_RETURN(bool row, before.Step());
    EXPECT_TRUE(row && before.Int(0) == 2);
    // Of another thread, as a function calls no store.
    std::thread([&] {
      EXPECT_TRUE(store->Write([](Database& other) { return AddVariant(other, "X-1x", 1); }).ok());
    }).join();
    SFT_ASSIGN_OR_RETURN(Statement after, db.Prepare("SELECT count(*) + 0 FROM variants"));
    SFT_ASSIGN_OR_RETURN(row, after.Step());
    EXPECT_TRUE(row && after.Int(0) == 2) << "the moment at which it began";
    return absl::OkStatus();
  });
  EXPECT_TRUE(read.ok()) << read;
  EXPECT_EQ(Count(*store, kCountVariants), 3);
}

TEST_F(StoreTest, AReadChangesNothing) {
  auto store = Open();
  EXPECT_FALSE(store->Read([](Database& db) { return AddVariant(db, "X-1x", 1); }).ok());
  EXPECT_EQ(Count(*store, kCountVariants), 2);
}

TEST_F(StoreTest, ADatabaseOfANewerServerIsRefused) {
  {
    auto db = Database::Open(DbPath()).value();
    ASSERT_TRUE(db->Execute("PRAGMA user_version = 999").ok());
  }
  const absl::Status status = Store::Open({DbPath()}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(Message(status).find("newer server"), std::string_view::npos) << status;
}

TEST_F(StoreTest, MigrationsAreNumberedWithoutGapsAndRunOnce) {
  int version = 0;
  for (const Migration& migration : Migrations()) EXPECT_EQ(migration.version, ++version);
  auto db = Database::Open(DbPath()).value();
  ASSERT_TRUE(Migrate(*db, DbPath()).ok());
  ASSERT_TRUE(Migrate(*db, DbPath()).ok());
  EXPECT_EQ(db->UserVersion().value(), version);
}

TEST_F(StoreTest, AFileThatIsNoDatabaseIsRefused) {
  ASSERT_TRUE(io::WriteFileAtomic(DbPath(), std::string(4096, 'x')).ok());
  EXPECT_FALSE(Store::Open({DbPath()}).ok());
}

TEST_F(StoreTest, TwoServersNeverShareADataFolder) {
  const auto first = DataDirLock::Acquire(dir_);
  ASSERT_TRUE(first.ok());
  const absl::Status second = DataDirLock::Acquire(dir_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_NE(Message(second).find(fmt::format("(pid {})", getpid())), std::string_view::npos)
      << second;
}

constexpr char kIndexThatMissesRows[] =
    "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT); "
    "CREATE INDEX t_b ON t (b) WHERE b <> 'x'; "
    "INSERT INTO t (b) VALUES ('one'), ('x'); "
    "PRAGMA writable_schema = ON; "
    "UPDATE sqlite_schema SET sql = 'CREATE INDEX t_b ON t (b)' "
    "WHERE name = 't_b'; PRAGMA writable_schema = OFF";

// Copies the database's files as `cp` does, those of `suffixes`.
class CopiedDatabaseTest : public StoreTest {
 protected:
  std::string CopyOf(const std::string& path, std::initializer_list<const char*> suffixes) {
    const std::string copy = fmt::format("{}/copy-{}.db", dir_, ++copies_);
    for (const char* suffix : suffixes) {
      if (!io::Exists(path + suffix)) continue;
      EXPECT_TRUE(io::WriteFileAtomic(copy + suffix, io::ReadFile(path + suffix).value()).ok());
    }
    return copy;
  }
  // As `cat copy > path` does.
  static void WriteOver(const std::string& path, const std::string& bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << bytes;
    ASSERT_TRUE(file.flush());
  }
  // `run` ends the process at once, as by kill -9, with zero when all went well.
  static void InChild(const std::function<void()>& run) {
    const pid_t child = fork();
    if (child == 0) run();
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
  static absl::Status OpenStatus(const std::string& path, bool accept_copy = false) {
    return Store::Open({.path = path, .accept_copy = accept_copy}).status();
  }

 private:
  int copies_ = 0;
};

TEST_F(CopiedDatabaseTest, ACopyOfADatabaseInUseIsRefusedWithAndWithoutItsJournal) {
  auto store = Open();
  ASSERT_TRUE(store->Write([](Database& db) { return AddVariant(db, "X-1x", 1); }).ok());
  const std::string alone = CopyOf(DbPath(), {""});
  const std::string whole = CopyOf(DbPath(), {"", "-wal", "-shm"});
  for (const std::string& copy : {alone, whole}) {
    const absl::Status refused = OpenStatus(copy);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    for (const char* part : {"was copied while a server used it", "sftctl admin backup",
                             "--restore", "--accept-copy"}) {
      EXPECT_NE(Message(refused).find(part), std::string_view::npos) << refused;
    }
    EXPECT_EQ(CheckDatabaseFile(copy, CheckDepth::kAll)->mark, DatabaseMark::kInUseElsewhere);
  }
  EXPECT_EQ(CheckDatabaseFile(DbPath(), CheckDepth::kAll)->mark, DatabaseMark::kInUseHere);
  // Whoever has nothing better takes it, and has said so once.
  EXPECT_EQ(Count(*Store::Open({.path = alone, .accept_copy = true}).value(), kCountVariants), 2)
      << "what was acknowledged is not in it";
  EXPECT_TRUE(OpenStatus(alone).ok());
}

TEST_F(CopiedDatabaseTest, WhatWasKilledLiesWhereItWas) {
  for (int i = 0; i < 3; ++i) {
    InChild([&] {
      auto store = Open();
      _exit(store->Write([&](Database& db) {
                   return AddVariant(db, fmt::format("X-{}x", i).c_str(), i + 1);
                 }).ok()
                ? 0
                : 1);
    });
    EXPECT_EQ(CheckDatabaseFile(DbPath(), CheckDepth::kPages)->mark, DatabaseMark::kInUseHere);
  }
  EXPECT_EQ(Count(*Open(), kCountVariants), 2 + 3);
}

// `cp backup/server.db server.db`: the file's inode and birth stay.
TEST_F(CopiedDatabaseTest, AnOlderCopyPutOverTheFileIsRefused) {
  std::string older;
  {
    auto store = Open();
    older = io::ReadFile(DbPath()).value();
    ASSERT_TRUE(store->Write([](Database& db) { return AddVariant(db, "X-1x", 1); }).ok());
  }
  WriteOver(DbPath(), older);
  for (int look = 0; look < 2; ++look) {  // a look leaves nothing that would make it pass
    EXPECT_TRUE(CheckDatabaseFile(DbPath(), CheckDepth::kAll).ok());
    EXPECT_FALSE(io::Exists(DbPath() + "-wal"));
    const absl::Status refused = OpenStatus(DbPath());
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    for (const char* part :
         {"an older copy was put over it", "-wal is not there", "--restore", "--accept-copy"}) {
      EXPECT_NE(Message(refused).find(part), std::string_view::npos) << refused;
    }
  }
  EXPECT_TRUE(OpenStatus(DbPath(), /*accept_copy=*/true).ok());
  EXPECT_TRUE(OpenStatus(DbPath()).ok());
}

// Of what was killed, by rows that an index misses: no look at its pages alone finds them.
TEST_F(CopiedDatabaseTest, AStartLooksAtAllOfWhatWasNotClosedInOrder) {
  InChild([&] {
    auto store = Open();
    const bool damaged = store
                             ->Write([](Database& db) {
                               SFT_RETURN_IF_ERROR(db.Execute(kIndexThatMissesRows));
                               return absl::OkStatus();
                             })
                             .ok();
    _exit(damaged ? 0 : 1);
  });
  EXPECT_TRUE(absl::IsDataLoss(OpenStatus(DbPath()))) << OpenStatus(DbPath());
}

TEST_F(CopiedDatabaseTest, WhatCouldNotBeMarkedAsClosedStartsAgain) {
  InChild([&] {
    auto store = Open();
    int64_t log = 0;
    for (int i = 0; log <= io::FileSize(DbPath()).value(); ++i) {
      if (!store
               ->Write([&](Database& db) {
                 return AddVariant(db, fmt::format("X-{}x", i).c_str(), i + 1);
               })
               .ok()) {
        _exit(2);
      }
      log = io::FileSize(DbPath() + "-wal").value();
    }
    // As on a full disk: no file can grow, what is there can be written.
    signal(SIGXFSZ, SIG_IGN);
    const rlimit full{static_cast<rlim_t>(log), static_cast<rlim_t>(log)};
    if (setrlimit(RLIMIT_FSIZE, &full) != 0) _exit(3);
    store.reset();
    _exit(0);
  });
  EXPECT_EQ(CheckDatabaseFile(DbPath(), CheckDepth::kAll)->mark, DatabaseMark::kInUseHere);
  EXPECT_TRUE(OpenStatus(DbPath()).ok()) << OpenStatus(DbPath());
}

TEST_F(CopiedDatabaseTest, WhatWasKilledWhileItBecameAFileWithALogIsRolledBack) {
  Open().reset();
  { ASSERT_TRUE(Database::OpenCopy(DbPath()).ok()); }
  InChild([&] {
    auto db = Database::OpenCopy(DbPath()).value();
    // Pages go to the file before the commit that does not come.
    const bool half = db->Execute(
                            "PRAGMA cache_size = 1; BEGIN; "
                            "CREATE TABLE t (a); INSERT INTO t VALUES (zeroblob(1000000)); "
                            "INSERT INTO variants VALUES ('half', 'X', 1)")
                          .ok();
    _exit(half ? 0 : 1);
  });
  ASSERT_TRUE(io::Exists(DbPath() + "-journal"));
  EXPECT_TRUE(OpenStatus(DbPath()).ok()) << OpenStatus(DbPath());
  EXPECT_EQ(Count(*Open(), kCountVariants), 2);
}

TEST(DatabaseMark, WhatAFileSystemDoesNotTellIsNoProofOfACopy) {
  const FilePlace born{.inode = 7, .born_ns = 1'700'000'000'123'456'789}, unborn{.inode = 7};
  const FilePlace later{.inode = 7, .born_ns = 5}, other{.inode = 8, .born_ns = born.born_ns};
  const absl::Status unknown = Unavailable("no statx here");
  struct Case {
    absl::StatusOr<FilePlace> then, now;
    DatabaseMark mark;
  };
  const Case cases[] = {
      {born, born, DatabaseMark::kInUseHere},
      {unborn, unborn, DatabaseMark::kInUseHere},
      {unborn, born, DatabaseMark::kInUseMaybeHere},  // after an upgrade of the kernel
      {born, unborn, DatabaseMark::kInUseMaybeHere},
      {born, unknown, DatabaseMark::kInUseMaybeHere},
      {unknown, born, DatabaseMark::kInUseMaybeHere},
      {born, later, DatabaseMark::kInUseElsewhere},
      {born, other, DatabaseMark::kInUseElsewhere},
      {unborn, other, DatabaseMark::kInUseElsewhere},
      {born, FilePlace{.inode = 8}, DatabaseMark::kInUseElsewhere},
  };
  for (const Case& each : cases) {
    const int64_t note = NoteOf(each.then);
    EXPECT_EQ(JudgeNote(note, each.now, true), each.mark) << &each - cases;
    EXPECT_EQ(JudgeNote(note, each.now, false), each.mark == DatabaseMark::kInUseElsewhere
                                                    ? DatabaseMark::kInUseElsewhere
                                                    : DatabaseMark::kInUseNoLog)
        << &each - cases;
  }
  // As the version before noted it: SHA-256 of "7:0:0" and of "7:1700000000:123456789".
  EXPECT_EQ(JudgeNote(254215022, unborn, true), DatabaseMark::kInUseHere);
  EXPECT_EQ(JudgeNote(254215022, born, true), DatabaseMark::kInUseMaybeHere);
  EXPECT_EQ(JudgeNote(24070841, born, true), DatabaseMark::kInUseHere);
  EXPECT_EQ(JudgeNote(24070841, other, true), DatabaseMark::kInUseElsewhere);
}

TEST_F(CopiedDatabaseTest, WhatWasClosedInOrderMayBeCopied) {
  ASSERT_TRUE(Open()->Write([](Database& db) { return AddVariant(db, "X-1x", 1); }).ok());
  EXPECT_FALSE(io::Exists(DbPath() + "-wal"));
  const std::string copy = CopyOf(DbPath(), {""});
  EXPECT_EQ(CheckDatabaseFile(copy, CheckDepth::kPages)->mark, DatabaseMark::kClosed);
  EXPECT_EQ(Count(*Store::Open({copy}).value(), kCountVariants), 3);
}

TEST_F(CopiedDatabaseTest, OneOfAnEarlierVersionHasNoMarkAndIsTaken) {
  Open().reset();
  {
    auto db = Database::Open(DbPath()).value();
    ASSERT_TRUE(db->Execute("PRAGMA application_id = 0").ok());
  }
  const std::string copy = CopyOf(DbPath(), {""});
  EXPECT_EQ(CheckDatabaseFile(copy, CheckDepth::kPages)->mark, DatabaseMark::kNone);
  EXPECT_TRUE(OpenStatus(copy).ok());
}

// Nobody looks at the rows of an index when its pages are in order.
TEST_F(CopiedDatabaseTest, AnIndexThatMissesRowsIsFoundByTheFullCheckAlone) {
  Open().reset();
  {
    auto db = Database::Open(DbPath()).value();
    ASSERT_TRUE(db->Execute(kIndexThatMissesRows).ok());
  }
  EXPECT_TRUE(CheckDatabaseFile(DbPath(), CheckDepth::kPages).ok());
  const absl::Status found = CheckDatabaseFile(DbPath(), CheckDepth::kAll).status();
  EXPECT_TRUE(absl::IsDataLoss(found)) << found;
  EXPECT_NE(Message(found).find("index t_b"), std::string_view::npos) << found;
  auto db = Database::Open(DbPath()).value();
  ASSERT_TRUE(db->Execute("PRAGMA application_id = 0").ok());
  db.reset();
  EXPECT_TRUE(absl::IsDataLoss(OpenStatus(DbPath())))
      << "a start looks at all of what says nothing";
}

TEST_F(CopiedDatabaseTest, AStartFindsDamagedPages) {
  Open().reset();
  std::string bytes = io::ReadFile(DbPath()).value();
  std::fill(bytes.begin() + 4096, bytes.begin() + 12288, '\x5a');
  ASSERT_TRUE(io::WriteFileAtomic(DbPath(), bytes).ok());
  EXPECT_TRUE(absl::IsDataLoss(OpenStatus(DbPath()))) << OpenStatus(DbPath());
}

TEST_F(StoreTest, AMigrationKeepsTheDatabaseFromBeforeIt) {
  {
    auto db = Database::Open(DbPath()).value();
    ASSERT_TRUE(db->Execute(Migrations().front().sql).ok());
    ASSERT_TRUE(db->Execute("PRAGMA user_version = 1").ok());
    ASSERT_TRUE(AddVariant(*db, "X-7x", 7).ok());
  }
  EXPECT_EQ(Count(*Open(), "SELECT count(*) FROM variants WHERE name = 'X-7x'"), 1);
  auto before = Database::OpenCopy(DbPath() + ".schema-1").value();
  EXPECT_EQ(before->UserVersion().value(), 1);
  EXPECT_FALSE(io::Exists(DbPath() + ".schema-1.partial"));
  EXPECT_FALSE(io::Exists(DbPath() + ".schema-0")) << "a new database has nothing to lose";
}

TEST_F(StoreTest, ACopyHasWhatIsWrittenWhileItIsMade) {
  auto store = Open();
  const auto fill = [&](int from, int to) {
    return store->Write([&](Database& db) -> absl::Status {
      for (int i = from; i < to; ++i) {
        SFT_RETURN_IF_ERROR(AddVariant(db, fmt::format("{:0500}", i).c_str(), i));
      }
      return absl::OkStatus();
    });
  };
  ASSERT_TRUE(fill(100, 2000).ok());
  const std::string path = dir_ + "/copy.db";
  std::unique_ptr<OnlineCopy> copy;
  bool whole = false;
  const auto step = [&](int pages) {
    return store->Read([&](Database& db) -> absl::Status {
      if (copy == nullptr) {
        SFT_ASSIGN_OR_RETURN(copy, OnlineCopy::Start(db, path));
      }
      SFT_ASSIGN_OR_RETURN(whole, copy->Step(pages));
      return absl::OkStatus();
    });
  };
  ASSERT_TRUE(step(8).ok());
  EXPECT_FALSE(whole);
  ASSERT_TRUE(fill(2000, 2500).ok());
  while (!whole) ASSERT_TRUE(step(64).ok());
  ASSERT_TRUE(store
                  ->Read([&](Database&) {
                    copy.reset();
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_EQ(FinishCopy(path).value(), Migrations().back().version);
  EXPECT_EQ(CheckDatabaseFile(path, CheckDepth::kAll)->mark, DatabaseMark::kClosed);
  auto opened = Store::Open({path}).value();
  EXPECT_EQ(Count(*opened, kCountVariants), 2 + 2400);
}

}  // namespace
}  // namespace sft::server
