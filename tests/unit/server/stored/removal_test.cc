#include "server/stored/removal.h"

#include <fmt/format.h>

#include "server/store/files.h"
#include "tests/unit/server/gangs/life_fixture.h"

namespace sft::server {
namespace {

class RemovalTest : public LifeTest {
 protected:
  RemovalTest()
      : artifacts_(BlobStore::Open(dir_ + "/blobs").value()),
        logs_(dir_ + "/logs"),
        metrics_(dir_ + "/metrics"),
        tensorboard_(dir_ + "/tensorboard"),
        removal_(*store_, clock_, dir_, {*artifacts_, logs_, metrics_, tensorboard_, *checkpoints_},
                 hub_, [] {}, {}) {}

  // A full model of an ended job, on the disk of its node.
  std::string FullModel() {
    const auto worker = Join("a", "CPU", 1);
    job_ = Submit("CPU", 1);
    Tick();
    Say("a", worker, job_, S::DONE, v1::Verdict::NONE, "succeeded");
    ArtifactRecord artifact;
    artifact.id = "artifact-1";
    artifact.job_id = job_;
    artifact.attempt_uid = Uid(job_);
    artifact.kind = "full model";
    artifact.node = "a";
    artifact.node_path = "/models/out";
    artifact.bytes = 1000;
    Do([&](Database& db) { return store::PutArtifact(db, artifact).status(); });
    return "artifact:" + artifact.id;
  }
  void Do(const std::function<absl::Status(Database&)>& change) {
    const absl::Status done = store_->Write(change);
    EXPECT_TRUE(done.ok()) << done;
  }
  size_t Artifacts() {
    size_t count = 0;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(const auto all, store::ArtifactsOfJob(db, job_));
                      count = all.size();
                      return absl::OkStatus();
                    })
                    .ok());
    return count;
  }
  std::vector<std::string> RemovedOnA() {
    std::vector<std::string> paths;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(paths, store::RemovedOnNode(db, "a", 0));
                      return absl::OkStatus();
                    })
                    .ok());
    return paths;
  }
  absl::Status Remove(const std::string& name, bool dry_run = false) {
    v1::RemoveStoredRequest request;
    request.set_name(name);
    request.set_dry_run(dry_run);
    return removal_.Remove(request, "ann", std::nullopt).status();
  }

  std::unique_ptr<BlobStore> artifacts_;
  LogStore logs_;
  MetricLog metrics_;
  TensorBoard tensorboard_;
  Removal removal_;
  std::string job_;
};

TEST_F(RemovalTest, AModelThatALiveJobNamesStays) {
  const std::string model = FullModel();
  const std::string user = Submit("CPU", 1);
  Do([&](Database& db) {
    const std::string change = "UPDATE jobs SET model = '/models/out' WHERE id = '" + user + "'";
    return db.Execute(change.c_str());
  });
  const absl::Status refused = Remove(model);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_NE(Message(refused).find("the model of job " + user), std::string::npos) << refused;
  EXPECT_EQ(Artifacts(), 1u);
  Do([&](Database& db) {
    const std::string change = fmt::format("UPDATE jobs SET state = {} WHERE id = '{}'",
                                           static_cast<int>(JobState::kCancelled), user);
    return db.Execute(change.c_str());
  });
  EXPECT_TRUE(Remove(model).ok());
  EXPECT_EQ(Artifacts(), 0u);
}

TEST_F(RemovalTest, AFullModelIsRemovedInOneTransactionWithItsNodesRow) {
  const std::string model = FullModel();
  // As if the disk were full when the row is written, or the server killed between the two.
  Do([](Database& db) { return db.Execute("ALTER TABLE removals RENAME TO elsewhere"); });
  EXPECT_FALSE(Remove(model).ok());
  EXPECT_EQ(Artifacts(), 1u) << "or nothing would ever remove it from its node";
  Do([](Database& db) { return db.Execute("ALTER TABLE elsewhere RENAME TO removals"); });

  EXPECT_TRUE(Remove(model, /*dry_run=*/true).ok());
  EXPECT_EQ(Artifacts(), 1u);
  EXPECT_TRUE(RemovedOnA().empty());

  EXPECT_TRUE(Remove(model).ok());
  EXPECT_EQ(Artifacts(), 0u);
  EXPECT_EQ(RemovedOnA(), std::vector<std::string>{"/models/out"});
  const v1::JobEvent last = jobs_->Events(job_, 0, 100)->back();
  EXPECT_EQ(last.type(), "removed");
  EXPECT_EQ(last.message(), "its full model (1.00 kB), by ann");
}

}  // namespace
}  // namespace sft::server
