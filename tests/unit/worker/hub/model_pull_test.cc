#include "worker/hub/model_pull.h"

#include <gtest/gtest.h>

#include "tests/unit/worker/hub/fake_hub.h"
#include "worker/hub/hub_cache.h"

namespace sft::worker {
namespace {

class ModelPullTest : public testing::Test {
 protected:
  ModelPullTest() {
    hub_.files = {{"config.json", "{}"},
                  {"tokenizer.json", "{ }"},
                  {"model.safetensors", std::string(5000, 'w')},
                  {"pytorch_model.bin", "never"}};
  }
  absl::StatusOr<PulledModel> Pull(const std::string& name, const PullWatch& watch = {}) {
    const hub::Hub hub({"https://hub", "", std::chrono::seconds(1)}, hub_.http, clock_);
    return PullModel(hub, *hub::ParseModelName(name), dir_.path(), watch, clock_);
  }
  std::string Folder() const { return dir_.path() + "/models--org--name"; }

  TempFolder dir_;
  FakeHub hub_;
  PatientClock clock_;
};

TEST_F(ModelPullTest, AModelIsInTheCacheAsHuggingfaceHubReadsIt) {
  std::atomic<int64_t> done = 0, total = 0;
  PullWatch watch;
  watch.on_progress = [&](const PullProgress& progress) {
    done = std::max<int64_t>(done, progress.bytes_done);
    total = progress.bytes_total;
  };
  const auto pulled = Pull("org/name", watch);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->commit, hub_.commit);
  EXPECT_EQ(pulled->snapshot_dir, Folder() + "/snapshots/" + hub_.commit);
  EXPECT_EQ(*io::ReadFile(pulled->snapshot_dir + "/model.safetensors"),
            hub_.files["model.safetensors"]);
  EXPECT_EQ(*io::ReadFile(Folder() + "/refs/main"), hub_.commit);
  EXPECT_EQ(MissingOf(pulled->snapshot_dir), "");
  EXPECT_TRUE(hub_.Ranges("pytorch_model.bin").empty());
  EXPECT_EQ(done, 5005);
  EXPECT_EQ(total, 5005);
}

TEST_F(ModelPullTest, ACommitIsNotAskedForAndMakesNoReference) {
  const auto pulled = Pull("org/name@" + hub_.commit);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_FALSE(io::Exists(Folder() + "/refs"));
  const size_t asked = hub_.http.requests.size();
  ASSERT_TRUE(Pull("org/name@" + hub_.commit).ok());
  EXPECT_EQ(hub_.http.requests.size(), asked);  // all of it is known
}

TEST_F(ModelPullTest, ShardsComeByTheirIndex) {
  hub_.files.erase("model.safetensors");
  hub_.files["model.safetensors.index.json"] =
      R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})";
  hub_.files["one.safetensors"] = "1";
  hub_.files["two.safetensors"] = "22";
  hub_.files["three.safetensors"] = "333";
  const auto pulled = Pull("org/name");
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(*io::ReadFile(pulled->snapshot_dir + "/two.safetensors"), "22");
  EXPECT_FALSE(io::Exists(pulled->snapshot_dir + "/three.safetensors"));
}

TEST_F(ModelPullTest, AFileThatFailsLeavesNoSnapshotButThePartsThatCame) {
  hub_.flips = 1000;
  EXPECT_TRUE(absl::IsDataLoss(Pull("org/name").status()));
  EXPECT_FALSE(io::Exists(Folder() + "/snapshots"));
  hub_.flips = 0;
  hub_.breaks = std::vector<size_t>(1000, 0);
  EXPECT_TRUE(absl::IsUnavailable(Pull("org/name").status()));
  EXPECT_FALSE(io::Exists(Folder() + "/snapshots"));
  hub_.breaks.clear();
  EXPECT_TRUE(Pull("org/name").ok());
}

TEST_F(ModelPullTest, WhatItTakesIsToldBeforeAByteOfTheWeightsComes) {
  PullWatch watch;
  watch.make_room = [&](int64_t bytes) {
    EXPECT_EQ(bytes, 5005);
    return ResourceExhausted("no room");
  };
  EXPECT_TRUE(absl::IsResourceExhausted(Pull("org/name", watch).status()));
  EXPECT_TRUE(hub_.Ranges("model.safetensors").empty());
  watch.make_room = [](int64_t) { return absl::OkStatus(); };
  ASSERT_TRUE(Pull("org/name", watch).ok());
  watch.make_room = [](int64_t bytes) {
    EXPECT_EQ(bytes, 0);
    return absl::OkStatus();
  };
  EXPECT_TRUE(Pull("org/name", watch).ok());
}

TEST_F(ModelPullTest, AMovedBranchBringsItsNewCommit) {
  ASSERT_TRUE(Pull("org/name").ok());
  const std::string old = hub_.commit;
  hub_.commit = std::string(40, 'd');
  hub_.files["config.json"] = R"({"new": 1})";
  const auto pulled = Pull("org/name");
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(*io::ReadFile(Folder() + "/refs/main"), std::string(40, 'd'));
  EXPECT_EQ(*io::ReadFile(pulled->snapshot_dir + "/config.json"), R"({"new": 1})");
  EXPECT_EQ(*io::ReadFile(Folder() + "/snapshots/" + old + "/config.json"), "{}");
  EXPECT_EQ(hub_.Ranges("model.safetensors").size(), 1);  // the same blob
}

TEST_F(ModelPullTest, WhatIsNoModelIsNotDownloaded) {
  hub_.files.erase("model.safetensors");
  const absl::Status status = Pull("org/name").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_NE(Message(status).find("model org/name cannot be used"), std::string::npos) << status;
  EXPECT_TRUE(hub_.Ranges("config.json").empty());
}

}  // namespace
}  // namespace sft::worker
