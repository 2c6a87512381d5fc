#include "server/store/checkpoints.h"

#include <gtest/gtest.h>

#include "common/io/file.h"
#include "server/database/migrations.h"
#include "server/store/attempts.h"
#include "server/store/jobs.h"
#include "server/store/nodes.h"

namespace sft::server::store {
namespace {

const std::string kBlobA(64, 'a'), kBlobB(64, 'b');

class CheckpointRowsTest : public testing::Test {
 protected:
  CheckpointRowsTest() : dir_(io::MakeTempDir("checkpoint-rows").value()) {
    Open();
    NodeRecord node;
    for (const char* name : {"a", "b"}) {
      node.name = name;
      EXPECT_TRUE(PutNode(*db_, node).ok());
    }
    JobRecord job;
    job.id = "job-1";
    job.spec.emplace();
    EXPECT_TRUE(InsertJob(*db_, job, {}).ok());
    AttemptRecord attempt;
    attempt.uid = "attempt-1";
    attempt.job_id = "job-1";
    EXPECT_TRUE(InsertAttempt(*db_, attempt, {}).ok());
  }
  ~CheckpointRowsTest() override {
    db_.reset();
    (void)io::RemoveAll(dir_);
  }
  // As after a kill -9 between two transactions.
  void Open() {
    db_.reset();
    db_ = Database::Open(dir_ + "/db").value();
    ASSERT_TRUE(Migrate(*db_, dir_ + "/before").ok());
  }

  CheckpointRecord Put(int64_t step, int node_rank, const std::string& blob, int parts = 2,
                       CheckpointPlace place = CheckpointPlace::kServer) {
    CheckpointRecord checkpoint;
    checkpoint.attempt_uid = "attempt-1";
    checkpoint.job_id = "job-1";
    checkpoint.attempt = 1;
    checkpoint.epoch = 1;
    checkpoint.step = step;
    checkpoint.reason = "steps";
    checkpoint.metric = 0.1;
    checkpoint.created_us = 100 + node_rank;
    CheckpointPart part{node_rank, node_rank == 0 ? "a" : "b", place, "", 10};
    const std::vector<ArtifactFileRecord> files = {{"rank-" + std::to_string(node_rank), blob, 10}};
    return PutCheckpointPart(*db_, checkpoint, part, files, parts).value();
  }

  const std::string dir_;
  std::unique_ptr<Database> db_;
};

TEST_F(CheckpointRowsTest, ItIsCommittedWithItsLastPart) {
  EXPECT_EQ(Put(10, 0, kBlobA).committed_us, 0);
  EXPECT_EQ(NewestStep(*db_, "job-1").value(), 0);
  const CheckpointRecord whole = Put(10, 1, kBlobB);
  EXPECT_EQ(whole.committed_us, 101);
  EXPECT_EQ(whole.bytes, 20);
  EXPECT_EQ(whole.metric, 0.1);
  EXPECT_EQ(NewestStep(*db_, "job-1").value(), 10);
  EXPECT_EQ(NewestStepOf(*db_, "attempt-1").value(), 10);
  EXPECT_EQ(NewestStepOf(*db_, "another attempt").value(), 0);
  EXPECT_EQ(FilesOfCheckpoint(*db_, "attempt-1", 10)->size(), 2u);
}

TEST_F(CheckpointRowsTest, ARepeatChangesNothing) {
  Put(10, 0, kBlobA);
  EXPECT_EQ(Put(10, 0, kBlobB).committed_us, 0) << "the same part does not count twice";
  Put(10, 1, kBlobB);
  EXPECT_EQ(Put(10, 1, kBlobA).committed_us, 101);
  EXPECT_EQ(FilesOfCheckpoint(*db_, "attempt-1", 10)->at(1).sha256, kBlobB);
}

TEST_F(CheckpointRowsTest, PartsSurviveACrashBetweenThem) {
  Put(10, 0, kBlobA);
  Open();
  EXPECT_GT(Put(10, 1, kBlobB).committed_us, 0);
  Open();
  const auto all = CheckpointsOfJob(*db_, "job-1").value();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].parts.size(), 2u);
  EXPECT_EQ(all[0].parts[1].node, "b");
}

TEST_F(CheckpointRowsTest, ABlobGoesWithTheLastCheckpointThatNamesIt) {
  Put(10, 0, kBlobA, 1);
  Put(20, 0, kBlobA, 1);
  EXPECT_TRUE(DeleteCheckpoint(*db_, "attempt-1", 10, 500)->empty());
  EXPECT_TRUE(CheckpointBlobInUse(*db_, kBlobA).value());
  EXPECT_EQ(DeleteCheckpoint(*db_, "attempt-1", 20, 501).value(), std::vector<std::string>{kBlobA});
  EXPECT_FALSE(CheckpointBlobInUse(*db_, kBlobA).value());
  EXPECT_TRUE(CheckpointsOfJob(*db_, "job-1")->empty());
  EXPECT_EQ(NewestStep(*db_, "job-1").value(), 20) << "what was reached is not forgotten";
}

TEST_F(CheckpointRowsTest, OneThatWasDeletedDoesNotComeBack) {
  Put(10, 0, kBlobA, 1);
  ASSERT_TRUE(DeleteCheckpoint(*db_, "attempt-1", 10, 500).ok());
  EXPECT_EQ(Put(10, 0, kBlobA, 1).deleted_us, 500);
  EXPECT_FALSE(CheckpointBlobInUse(*db_, kBlobA).value());
}

TEST_F(CheckpointRowsTest, APartOfWhatCanNeverBeWholeIsNotKept) {
  Put(10, 0, kBlobA, 2);
  EXPECT_EQ(KeptOnNode(*db_, "a")->size(), 1u) << "the other part may come";
  AttemptRecord attempt = GetAttempt(*db_, "attempt-1").value();
  for (const AttemptState state : {AttemptState::kStopping, AttemptState::kFailed}) {
    ASSERT_TRUE(TakeAttemptEdge(*db_, attempt, state, 600).ok());
  }
  EXPECT_TRUE(KeptOnNode(*db_, "a")->empty());
}

TEST_F(CheckpointRowsTest, ANodeKeepsWhatIsNotDeleted) {
  Put(10, 0, kBlobA, 1);
  Put(20, 0, kBlobB, 1);
  ASSERT_TRUE(DeleteCheckpoint(*db_, "attempt-1", 10, 500).ok());
  const auto kept = KeptOnNode(*db_, "a").value();
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].step, 20);
  EXPECT_TRUE(KeptOnNode(*db_, "b")->empty());
}

TEST_F(CheckpointRowsTest, OfTheSharedFolderAJobWithNothingIsNamedOnceItHasEnded) {
  Put(10, 0, kBlobA, 1, CheckpointPlace::kShared);
  ASSERT_EQ(KeptInShared(*db_, 0)->size(), 1u);
  EXPECT_FALSE(KeptInShared(*db_, 0)->front().ended);
  ASSERT_TRUE(DeleteCheckpoint(*db_, "attempt-1", 10, 500).ok());
  EXPECT_TRUE(KeptInShared(*db_, 0)->empty()) << "nobody may clean up where it writes";
  JobRecord job = GetJob(*db_, "job-1").value();
  ASSERT_TRUE(TakeEdge(*db_, job, JobState::kCancelled, "", 600).ok());
  const auto kept = KeptInShared(*db_, 0).value();
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_TRUE(kept[0].ended);
  EXPECT_EQ(kept[0].step, 0);
  EXPECT_TRUE(KeptInShared(*db_, 500)->empty()) << "deleted too long ago";
}

TEST_F(CheckpointRowsTest, FaultsAreListedByNodeOldestFirst) {
  ASSERT_TRUE(AddNodeFault(*db_, {"b", 2, "j", "x"}).ok());
  ASSERT_TRUE(AddNodeFault(*db_, {"a", 3, "j", "x"}).ok());
  ASSERT_TRUE(AddNodeFault(*db_, {"a", 1, "j", "x"}).ok());
  const auto faults = NodeFaults(*db_, 0).value();
  ASSERT_EQ(faults.size(), 3u);
  EXPECT_EQ(faults[0].time_us, 1);
  EXPECT_EQ(faults[2].node, "b");
  ASSERT_TRUE(DropNodeFaults(*db_, 3).ok());
  EXPECT_EQ(NodeFaults(*db_, 0)->size(), 1u);
}

}  // namespace
}  // namespace sft::server::store
