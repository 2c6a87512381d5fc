#include "worker/shipping/artifact.h"

#include <unistd.h>

#include "common/io/sha256.h"
#include "tests/unit/worker/base/test_node.h"
#include "tests/unit/worker/transfer/fake_server.h"

namespace sft::worker {
namespace {

class ArtifactTest : public TestNode {
 protected:
  absl::Status Deliver(const std::string& kind) {
    return DeliverArtifact({kind, dir_ + "/output", 0}, "a-1", 3, "node-a", server_,
                           [this] { return stop_; });
  }

  FakeServer server_;
  bool stop_ = false;
};

TEST_F(ArtifactTest, AnAdaptersFilesAreUploadedAndRegisteredWithTheirHashes) {
  Write(dir_ + "/output/adapter_config.json", "{}");
  Write(dir_ + "/output/deep/weights.safetensors", "www");
  ASSERT_TRUE(Deliver("adapter").ok());
  ASSERT_EQ(server_.uploaded.size(), 2u);
  ASSERT_EQ(server_.commits.size(), 1u);
  const v1::CommitArtifactRequest& commit = server_.commits[0];
  EXPECT_EQ(commit.kind(), "adapter");
  EXPECT_EQ(commit.epoch(), 3);
  EXPECT_EQ(commit.node_path(), "");
  EXPECT_EQ(commit.files(1).path(), "deep/weights.safetensors");
  EXPECT_EQ(commit.files(1).blob().sha256(), io::Sha256Hex("www"));
  EXPECT_EQ(commit.files(1).blob().size(), 3);
}

TEST_F(ArtifactTest, AFullModelStaysWhereItIs) {
  Write(dir_ + "/output/model.safetensors", "www");
  ASSERT_TRUE(Deliver("model").ok());
  EXPECT_TRUE(server_.uploaded.empty());
  ASSERT_EQ(server_.commits.size(), 1u);
  EXPECT_EQ(server_.commits[0].node_path(), dir_ + "/output");
  EXPECT_EQ(server_.commits[0].node(), "node-a");
}

TEST_F(ArtifactTest, ALinkInItIsRefused) {
  Write(dir_ + "/output/a", "x");
  ASSERT_EQ(symlink("/etc/passwd", (dir_ + "/output/b").c_str()), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(Deliver("adapter")));
  EXPECT_TRUE(server_.commits.empty());
}

TEST_F(ArtifactTest, NothingDeliveredIsAnError) {
  ASSERT_TRUE(io::MakeDirs(dir_ + "/output").ok());
  EXPECT_TRUE(absl::IsNotFound(Deliver("adapter")));
}

TEST_F(ArtifactTest, AStopEndsTheDeliveryBeforeItIsRegistered) {
  Write(dir_ + "/output/a", "x");
  stop_ = true;
  EXPECT_TRUE(absl::IsAborted(Deliver("adapter")));
  EXPECT_TRUE(server_.commits.empty());
}

TEST_F(ArtifactTest, TheLastOneThatRankZeroReportedCounts) {
  EXPECT_FALSE(FindArtifact(dir_).ok());
  Write(dir_ + "/launch.json", R"({"output_dir":"/second"})");
  Write(dir_ + "/rank-0.events",
        channel::ToLine({1, channel::ArtifactEvent{"adapter", "/first", 1}}) + "broken\n" +
            channel::ToLine({2, channel::ArtifactEvent{"adapter", "/second", 2}}));
  EXPECT_EQ(FindArtifact(dir_)->path, "/second");
}

TEST_F(ArtifactTest, AFolderThatTheRankWasNotGivenIsNotDelivered) {
  Write(dir_ + "/launch.json", R"({"output_dir":")" + dir_ + R"(/output"})");
  Write(dir_ + "/rank-0.events", channel::ToLine({1, channel::ArtifactEvent{"model", "/etc", 1}}));
  const absl::Status refused = FindArtifact(dir_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_NE(refused.message().find("/etc"), std::string::npos) << refused;
}

TEST_F(ArtifactTest, AnEventFileThatIsALinkIsIgnored) {
  Write(dir_ + "/launch.json", R"({"output_dir":"/output"})");
  Write(dir_ + "/elsewhere", channel::ToLine({1, channel::ArtifactEvent{"adapter", "/output", 1}}));
  ASSERT_EQ(symlink((dir_ + "/elsewhere").c_str(), (dir_ + "/rank-0.events").c_str()), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(FindArtifact(dir_).status()));
}

}  // namespace
}  // namespace sft::worker
