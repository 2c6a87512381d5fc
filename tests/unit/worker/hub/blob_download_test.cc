#include "worker/hub/blob_download.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "tests/unit/worker/hub/fake_hub.h"

namespace sft::worker {
namespace {

constexpr char kWeights[] = "model.safetensors";

class BlobDownloadTest : public testing::Test {
 protected:
  BlobDownloadTest() : cache_(dir_.path(), "org/name") {
    for (int i = 0; i < 3000; ++i) hub_.files[kWeights] += fmt::format("{} ", i);
    hub_.files["config.json"] = R"({"a": 1})";
    EXPECT_TRUE(cache_.Prepare().ok());
  }
  hub::HubFile File(const std::string& path) const {
    const std::string& bytes = hub_.files.at(path);
    hub::HubFile file{path, static_cast<int64_t>(bytes.size()), GitBlobId(bytes), "", ""};
    if (FakeHub::IsLfs(path)) file.lfs_sha256 = io::Sha256Hex(bytes);
    return file;
  }
  absl::Status Get(const std::string& path, ModelPeers* peers = nullptr) {
    const hub::Hub hub({"https://hub", "", std::chrono::seconds(1)}, hub_.http, clock_);
    BlobWatch watch{stop_, [this](int64_t bytes) { counted_ += bytes; }};
    watch.on_node_bytes = [this](const std::string& node, int64_t bytes) {
      from_nodes_[node] += bytes;
    };
    return DownloadBlob({hub, "org/name", hub_.commit, peers}, File(path), cache_, watch, clock_);
  }
  // That the blob is there with its bytes, and nothing of the way it came.
  void ExpectWhole(const std::string& path) {
    const hub::HubFile file = File(path);
    const auto bytes = io::ReadFile(cache_.BlobPath(file.etag()));
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(*bytes, hub_.files.at(path));
    EXPECT_FALSE(io::Exists(cache_.PartPath(file.etag())));
    EXPECT_EQ(counted_, file.size);
  }
  using Ranges = std::vector<std::string>;

  TempFolder dir_;
  FakeHub hub_;
  FakeClock clock_;
  HubCache cache_;
  hub::StopCheck stop_;
  int64_t counted_ = 0;
  std::map<std::string, int64_t> from_nodes_;
};

// Nodes that have the files of a repository; each answer ends after so many bytes.
class FakePeers : public ModelPeers {
 public:
  explicit FakePeers(const FakeHub& hub) : hub_(hub) {}
  absl::StatusOr<PeerFile> Open(const std::string& id, const std::string& commit,
                                const std::string& path, int64_t offset,
                                const hub::StopCheck&) override {
    EXPECT_EQ(id + "@" + commit, "org/name@" + hub_.commit);
    offsets.push_back(offset);
    if (gone) return NotFound("no other node has it");
    std::string bytes = hub_.files.at(path);
    if (wrong) bytes[0] ^= 1;
    bytes = bytes.substr(static_cast<size_t>(offset), most);
    const size_t breaks_at = breaks ? bytes.size() / 2 : std::string::npos;
    return PeerFile{"node-a", std::make_unique<hub::FakeBody>(bytes, breaks_at)};
  }
  bool gone = false, wrong = false, breaks = false;
  size_t most = std::string::npos;
  std::vector<int64_t> offsets;

 private:
  const FakeHub& hub_;
};

TEST_F(BlobDownloadTest, AnotherNodeThatHasTheFileSendsItAndTheHubIsNotAsked) {
  FakePeers peers(hub_);
  ASSERT_TRUE(Get(kWeights, &peers).ok());
  ExpectWhole(kWeights);
  EXPECT_EQ(hub_.Ranges(kWeights), Ranges());
  EXPECT_EQ(from_nodes_["node-a"], File(kWeights).size);
}

TEST_F(BlobDownloadTest, WhatANodeBreaksOffIsGoneOnWithAndTheHubGivesTheRest) {
  ASSERT_TRUE(io::WriteFileAtomic(cache_.PartPath(File(kWeights).etag()),
                                  hub_.files[kWeights].substr(0, 700))
                  .ok());
  FakePeers peers(hub_);
  peers.most = 1000;
  peers.breaks = true;
  ASSERT_TRUE(Get(kWeights, &peers).ok());
  ExpectWhole(kWeights);
  ASSERT_GE(peers.offsets.size(), 3u);
  EXPECT_EQ(std::vector(peers.offsets.begin(), peers.offsets.begin() + 3),
            std::vector<int64_t>({700, 1200, 1700}));
  // The last byte is half of none.
  EXPECT_EQ(hub_.Ranges(kWeights).size(), 1u);
  EXPECT_EQ(from_nodes_["node-a"], File(kWeights).size - 700 - 1);
}

TEST_F(BlobDownloadTest, ANodeThatSendsOtherBytesIsNotBelieved) {
  FakePeers peers(hub_);
  peers.wrong = true;
  ASSERT_TRUE(Get(kWeights, &peers).ok());
  ExpectWhole(kWeights);
  EXPECT_EQ(peers.offsets, std::vector<int64_t>({0}));
  EXPECT_EQ(hub_.Ranges(kWeights), Ranges({""}));
}

TEST_F(BlobDownloadTest, WithoutANodeThatHasItTheHubIsAsked) {
  FakePeers peers(hub_);
  peers.gone = true;
  ASSERT_TRUE(Get(kWeights, &peers).ok());
  ExpectWhole(kWeights);
  EXPECT_EQ(hub_.Ranges(kWeights), Ranges({""}));
  EXPECT_TRUE(from_nodes_.empty());
}

TEST_F(BlobDownloadTest, AFileComesInOnePieceAndOnce) {
  ASSERT_TRUE(Get(kWeights).ok());
  ExpectWhole(kWeights);
  counted_ = 0;
  ASSERT_TRUE(Get(kWeights).ok());
  ExpectWhole(kWeights);
  EXPECT_EQ(hub_.Ranges(kWeights), Ranges({""}));
}

TEST_F(BlobDownloadTest, ASmallFileIsCheckedAgainstGitsHash) {
  hub_.flips = 1;
  ASSERT_TRUE(Get("config.json").ok());
  ExpectWhole("config.json");
  EXPECT_EQ(hub_.Ranges("config.json").size(), 2);
}

TEST_F(BlobDownloadTest, AnEmptyFileIsAFile) {
  hub_.files["merges.txt"] = "";
  ASSERT_TRUE(Get("merges.txt").ok());
  EXPECT_EQ(*io::ReadFile(cache_.BlobPath("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391")), "");
}

TEST_F(BlobDownloadTest, ABrokenConnectionIsGoneOnWith) {
  hub_.breaks = {1000, 500};
  ASSERT_TRUE(Get(kWeights).ok());
  ExpectWhole(kWeights);
  EXPECT_EQ(hub_.Ranges(kWeights), Ranges({"", "bytes=1000-", "bytes=1500-"}));
}

TEST_F(BlobDownloadTest, AnotherLifeGoesOnWithWhatCame) {
  ASSERT_TRUE(io::WriteFileAtomic(cache_.PartPath(File(kWeights).etag()),
                                  hub_.files[kWeights].substr(0, 700))
                  .ok());
  ASSERT_TRUE(Get(kWeights).ok());
  ExpectWhole(kWeights);
  EXPECT_EQ(hub_.Ranges(kWeights), Ranges({"bytes=700-"}));
}

TEST_F(BlobDownloadTest, WhatCameWrongComesAgain) {
  // After a loss of power a file may have its length and other bytes.
  ASSERT_TRUE(
      io::WriteFileAtomic(cache_.PartPath(File(kWeights).etag()), std::string(700, '\0')).ok());
  ASSERT_TRUE(Get(kWeights).ok());
  ExpectWhole(kWeights);
  EXPECT_EQ(hub_.Ranges(kWeights), Ranges({"bytes=700-", ""}));
}

TEST_F(BlobDownloadTest, WhoeverKnowsNoRangesSendsAllOfItAgain) {
  hub_.breaks = {1000};
  hub_.no_range = true;
  ASSERT_TRUE(Get(kWeights).ok());
  ExpectWhole(kWeights);
}

TEST_F(BlobDownloadTest, AnAnswerFromAnotherByteOrARefusedRangeBeginsAgain) {
  hub_.breaks = {1000};
  hub_.wrong_range = true;
  ASSERT_TRUE(Get(kWeights).ok());
  ExpectWhole(kWeights);
  ASSERT_TRUE(io::RemoveAll(cache_.BlobPath(File(kWeights).etag())).ok());
  hub_.wrong_range = false;
  hub_.breaks = {1000};
  hub_.refuse_range = 1;
  counted_ = 0;
  ASSERT_TRUE(Get(kWeights).ok());
  ExpectWhole(kWeights);
}

TEST_F(BlobDownloadTest, APartThatIsTooLongBeginsAgain) {
  const std::string longer = hub_.files[kWeights] + "more";
  ASSERT_TRUE(io::WriteFileAtomic(cache_.PartPath(File(kWeights).etag()), longer).ok());
  ASSERT_TRUE(Get(kWeights).ok());
  ExpectWhole(kWeights);
}

TEST_F(BlobDownloadTest, ABlobOfAnotherSizeIsReplaced) {
  ASSERT_TRUE(io::WriteFileAtomic(cache_.BlobPath(File(kWeights).etag()), "half").ok());
  ASSERT_TRUE(Get(kWeights).ok());
  ExpectWhole(kWeights);
}

TEST_F(BlobDownloadTest, ASmallFileThatWasDamagedSinceComesAgain) {
  ASSERT_TRUE(Get("config.json").ok());
  const std::string path = cache_.BlobPath(File("config.json").etag());
  ASSERT_TRUE(io::WriteFileAtomic(path, std::string(hub_.files["config.json"].size(), '\0')).ok());
  counted_ = 0;
  ASSERT_TRUE(Get("config.json").ok());
  ExpectWhole("config.json");
}

TEST_F(BlobDownloadTest, AFolderInABlobsPlaceStays) {
  const std::string inside = cache_.BlobPath(File(kWeights).etag()) + "/precious";
  ASSERT_TRUE(io::MakeDirs(inside).ok());
  EXPECT_FALSE(Get(kWeights).ok());
  EXPECT_TRUE(io::IsDirectory(inside));
}

TEST_F(BlobDownloadTest, AByteThatStaysWrongIsSaidAndNothingIsLeft) {
  hub_.flips = 100;
  const absl::Status status = Get(kWeights);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_NE(Message(status).find("model.safetensors of org/name"), std::string::npos) << status;
  EXPECT_EQ(io::ListDir(cache_.folder() + "/blobs")->size(), 0);
}

TEST_F(BlobDownloadTest, AHubThatSendsNothingMoreIsGivenUpAndThePartStays) {
  hub_.breaks = std::vector<size_t>(100, 0);
  hub_.breaks[0] = 1000;
  const absl::Status status = Get(kWeights);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(Message(status).find("1000 of"), std::string::npos) << status;
  EXPECT_EQ(*io::FileSize(cache_.PartPath(File(kWeights).etag())), 1000);
}

TEST_F(BlobDownloadTest, AStopKeepsThePart) {
  hub_.breaks = {1000};
  int asked = 0;
  stop_ = [&] { return ++asked > 3; };
  EXPECT_TRUE(absl::IsAborted(Get(kWeights)));
  EXPECT_EQ(*io::FileSize(cache_.PartPath(File(kWeights).etag())), 1000);
  stop_ = {};
  counted_ = 0;
  ASSERT_TRUE(Get(kWeights).ok());
  ExpectWhole(kWeights);
}

TEST_F(BlobDownloadTest, AFileThatIsNotThereIsSo) {
  hub_.files["gone.safetensors"] = "x";
  const hub::HubFile file = File("gone.safetensors");
  hub_.files.erase("gone.safetensors");
  const hub::Hub hub({"https://hub"}, hub_.http, clock_);
  const BlobWatch watch{{}, [](int64_t) {}};
  EXPECT_TRUE(
      absl::IsNotFound(DownloadBlob({hub, "org/name", hub_.commit}, file, cache_, watch, clock_)));
}

}  // namespace
}  // namespace sft::worker
