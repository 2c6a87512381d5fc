#include "server/blob/blob_store.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "common/io/sha256.h"

namespace sft::server {
namespace {

class BlobStoreTest : public testing::Test {
 protected:
  BlobStoreTest() : dir_(io::MakeTempDir("blob-test").value()) { Reopen(); }
  ~BlobStoreTest() override { (void)io::RemoveAll(dir_); }
  void Reopen() { blobs_ = BlobStore::Open(dir_).value(); }
  std::string PartPath(const std::string& sha256) { return dir_ + "/uploads/" + sha256 + ".part"; }

  const std::string dir_;
  const std::string content_ = "some rows\n";
  const std::string sha256_ = io::Sha256Hex(content_);
  const int64_t size_ = static_cast<int64_t>(content_.size());
  std::unique_ptr<BlobStore> blobs_;
};

TEST_F(BlobStoreTest, KeepsUploadedBytes) {
  auto upload = blobs_->Begin(sha256_, size_, 0).value();
  ASSERT_TRUE(upload->Append(content_).ok());
  ASSERT_TRUE(upload->Finish({}).ok());
  EXPECT_EQ(io::ReadFile(blobs_->PathOf(sha256_).value()).value(), content_);
  EXPECT_TRUE(blobs_->Find(sha256_)->complete);
  EXPECT_TRUE(absl::IsAlreadyExists(blobs_->Begin(sha256_, size_, 0).status()));
  EXPECT_FALSE(io::Exists(PartPath(sha256_)));
}

TEST_F(BlobStoreTest, AnUploadWithoutANameGetsThatOfItsBytes) {
  {
    auto upload = blobs_->BeginUnnamed(100, "default").value();
    ASSERT_TRUE(upload->Append(content_.substr(0, 3)).ok());
    // No other sees or counts it, and two at once are two.
    auto other = blobs_->BeginUnnamed(100, "default").value();
    ASSERT_TRUE(other->Append("other").ok());
    EXPECT_TRUE(blobs_->Unfinished("default")->empty());
    ASSERT_TRUE(upload->Append(content_.substr(3)).ok());
    const auto check = [&](const std::string& path) {
      EXPECT_EQ(io::ReadFile(path).value(), content_);
      EXPECT_EQ(upload->sha256(), sha256_);
      EXPECT_EQ(upload->received(), size_);
      return absl::OkStatus();
    };
    ASSERT_TRUE(upload->Finish(check).ok());
  }
  EXPECT_EQ(io::ReadFile(blobs_->PathOf(sha256_).value()).value(), content_);
  // What did not come to its end is not there any more.
  EXPECT_TRUE(io::ListDir(dir_ + "/uploads")->empty());
  // Nor what a server that was killed has left.
  ASSERT_TRUE(
      io::WriteFileAtomic(dir_ + "/uploads/" + sha256_ + ".default~unnamed.part", "x").ok());
  ASSERT_TRUE(io::WriteFileAtomic(PartPath(sha256_), "x").ok());
  Reopen();
  EXPECT_EQ(io::ListDir(dir_ + "/uploads").value(), std::vector<std::string>{sha256_ + ".part"});
}

TEST_F(BlobStoreTest, AnUploadWithoutANameHasNoMoreBytesThanItSaid) {
  auto upload = blobs_->BeginUnnamed(3, "default").value();
  EXPECT_TRUE(absl::IsInvalidArgument(upload->Append("four")));
}

TEST_F(BlobStoreTest, AnUploadResumesWhereItStoppedAlsoAfterARestart) {
  ASSERT_TRUE(blobs_->Begin(sha256_, size_, 0).value()->Append(content_.substr(0, 4)).ok());
  Reopen();
  EXPECT_EQ(blobs_->Find(sha256_)->received, 4);
  EXPECT_TRUE(absl::IsOutOfRange(blobs_->Begin(sha256_, size_, 0).status()));
  auto upload = blobs_->Begin(sha256_, size_, 4).value();
  ASSERT_TRUE(upload->Append(content_.substr(4)).ok());
  ASSERT_TRUE(upload->Finish({}).ok());
  EXPECT_EQ(io::ReadFile(blobs_->PathOf(sha256_).value()).value(), content_);
}

TEST_F(BlobStoreTest, BytesOfAnotherHashAreRefusedAndRemoved) {
  auto upload = blobs_->Begin(sha256_, size_, 0).value();
  ASSERT_TRUE(upload->Append("other row\n").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(upload->Finish({})));
  EXPECT_FALSE(blobs_->Find(sha256_)->complete);
  EXPECT_FALSE(io::Exists(PartPath(sha256_)));
}

TEST_F(BlobStoreTest, AFileThatItsCheckRefusesIsRemoved) {
  auto upload = blobs_->Begin(sha256_, size_, 0).value();
  ASSERT_TRUE(upload->Append(content_).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(
      upload->Finish([](const std::string&) { return InvalidArgument("line 1: no"); })));
  EXPECT_FALSE(io::Exists(PartPath(sha256_)));
}

TEST_F(BlobStoreTest, AnUploadWhoseCheckCouldNotBeMadeIsKept) {
  auto upload = blobs_->Begin(sha256_, size_, 0).value();
  ASSERT_TRUE(upload->Append(content_).ok());
  EXPECT_TRUE(absl::IsUnavailable(
      upload->Finish([](const std::string&) { return Unavailable("the store is busy"); })));
  upload.reset();
  EXPECT_EQ(blobs_->Find(sha256_)->received, size_);
  ASSERT_TRUE(blobs_->Begin(sha256_, size_, size_).value()->Finish({}).ok());
  EXPECT_TRUE(blobs_->Find(sha256_)->complete);
}

TEST_F(BlobStoreTest, TheUnfinishedUploadsOfOneUploaderAreListed) {
  const std::string other = io::Sha256Hex("other");
  ASSERT_TRUE(blobs_->Begin(sha256_, size_, 0, "ann").value()->Append("some").ok());
  ASSERT_TRUE(blobs_->Begin(other, 5, 0, "bob").value()->Append("o").ok());
  ASSERT_TRUE(blobs_->Begin(other, 5, 0).value()->Append("ot").ok());
  using Parts = std::map<std::string, int64_t>;
  EXPECT_EQ(blobs_->Unfinished("ann").value(), (Parts{{sha256_, 4}}));
  EXPECT_EQ(blobs_->Unfinished("bob").value(), (Parts{{other, 1}}));
  EXPECT_EQ(blobs_->Unfinished("").value(), (Parts{{other, 2}}));
  EXPECT_EQ(blobs_->Unfinished("cid").value(), Parts());
}

TEST_F(BlobStoreTest, AnEarlyEndKeepsTheReceivedBytes) {
  auto upload = blobs_->Begin(sha256_, size_, 0).value();
  ASSERT_TRUE(upload->Append("some").ok());
  EXPECT_TRUE(absl::IsOutOfRange(upload->Finish({})));
  upload.reset();
  EXPECT_EQ(blobs_->Find(sha256_)->received, 4);
}

TEST_F(BlobStoreTest, MoreThanTheAnnouncedSizeIsRefused) {
  auto upload = blobs_->Begin(sha256_, 4, 0).value();
  EXPECT_TRUE(absl::IsInvalidArgument(upload->Append(content_)));
}

TEST_F(BlobStoreTest, OneUploadOfABlobAtATime) {
  auto upload = blobs_->Begin(sha256_, size_, 0).value();
  EXPECT_TRUE(absl::IsAborted(blobs_->Begin(sha256_, size_, 0).status()));
  upload.reset();
  EXPECT_TRUE(blobs_->Begin(sha256_, size_, 0).ok());
}

TEST_F(BlobStoreTest, AFullDiskIsAnErrorAndLeavesNothing) {
  std::filesystem::create_symlink("/dev/full", PartPath(sha256_));
  auto upload = blobs_->Begin(sha256_, size_, 0).value();
  const absl::Status status = upload->Append(content_);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(Message(status).find("disk is full"), std::string_view::npos) << status;
  EXPECT_FALSE(std::filesystem::is_symlink(PartPath(sha256_)));
}

TEST_F(BlobStoreTest, ABlobThatReplacedADamagedOneStays) {
  const auto upload = [&] {
    auto upload = blobs_->Begin(sha256_, size_, 0).value();
    ASSERT_TRUE(upload->Append(content_).ok());
    ASSERT_TRUE(upload->Finish({}).ok());
  };
  upload();
  ASSERT_TRUE(io::WriteFileAtomic(blobs_->PathOf(sha256_).value(), "Some rows\n").ok());
  // While one reader is reading, another finds the damage and the owner uploads the blob again.
  const absl::Status slow = blobs_->Read(sha256_, 0, [&](int64_t, const std::string&, int64_t) {
    EXPECT_TRUE(absl::IsDataLoss(
        blobs_->Read(sha256_, 0, [](int64_t, const std::string&, int64_t) { return true; })));
    EXPECT_FALSE(blobs_->Find(sha256_)->complete);
    upload();
    return true;
  });
  EXPECT_TRUE(absl::IsDataLoss(slow)) << slow;
  EXPECT_TRUE(blobs_->Find(sha256_)->complete);
  EXPECT_EQ(blobs_->damaged(), 1);
  EXPECT_TRUE(blobs_->OlderThan(int64_t{1} << 40)->blobs == std::vector<std::string>{sha256_});
}

TEST_F(BlobStoreTest, ANameThatIsNotAHashNeverReachesTheDisk) {
  EXPECT_TRUE(absl::IsInvalidArgument(blobs_->Find("../server.db").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(blobs_->Begin("../x", 1, 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(blobs_->PathOf("").status()));
  EXPECT_TRUE(absl::IsNotFound(blobs_->PathOf(sha256_).status()));
}

}  // namespace
}  // namespace sft::server
