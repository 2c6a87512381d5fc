#include "server/fleet/delivery_limits.h"

#include <fmt/format.h>

#include <fstream>

#include "server/store/nodes.h"
#include "tests/unit/server/jobs/intake_fixture.h"

namespace sft::server {
namespace {

// A job on node a, whose attempt delivers.
class DeliveryLimitsTest : public IntakeTest {
 protected:
  DeliveryLimitsTest() : worker_(JoinWithModel(kConfig)), disk_(dir_, {}, clock_) {
    EXPECT_TRUE(Upload(kRows).ok());
    const auto outcome = intake_.Submit(Request(), "local");
    EXPECT_TRUE(outcome.ok() && outcome->problems.empty());
    const std::string name = outcome->job.name();
    Tick();
    uid_ = Uid(name.substr(name.rfind('/') + 1));
  }
  DeliveryLimits With(int64_t unknown_bytes, DiskWatch& disk) {
    return DeliveryLimits(*store_, planner_.fleet(), disk, registry_->refusals(), unknown_bytes);
  }
  // Sends the first part of a file of this size, or all of it.
  absl::Status Bring(DeliveryLimits& limits, const std::string& content, int64_t size = 0,
                     std::unique_ptr<UploadSession>* under_way = nullptr) {
    auto session = std::make_unique<UploadSession>(*blobs_, *blobs_, *store_, clock_,
                                                   Sender{"a", "", "a", uid_}, nullptr, &limits);
    v1::UploadBlobRequest message;
    message.set_sha256(io::Sha256Hex(content));
    message.set_size(size > 0 ? size : static_cast<int64_t>(content.size()));
    message.set_purpose(v1::UploadBlobRequest::CHECKPOINT);
    message.set_data(content);
    SFT_RETURN_IF_ERROR(session->Take(message));
    if (under_way != nullptr) *under_way = std::move(session);
    return size > 0 ? absl::OkStatus() : session->Finish().status();
  }
  int64_t Refused() const {
    const auto counts = registry_->refusals().counts();
    return counts.contains("a") ? counts.at("a") : 0;
  }

  const std::shared_ptr<FakeWorker> worker_;
  DiskWatch disk_;
  std::string uid_;
};

TEST_F(DeliveryLimitsTest, AnAttemptsFilesAreLimitedCompleteAndPartial) {
  DeliveryLimits limits = With(100, disk_);
  const std::string whole(60, 'w');
  ASSERT_TRUE(Bring(limits, whole).ok());
  ASSERT_TRUE(Bring(limits, whole).ok()) << "the same file again";
  const absl::Status refused = Bring(limits, std::string(41, 'x'));
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  for (const std::string& part :
       {uid_, std::string("--max-delivery-gb"), std::string("it waits")}) {
    EXPECT_NE(Message(refused).find(part), std::string_view::npos) << refused;
  }
  EXPECT_EQ(Refused(), 1);
  // An upload counts with its announced size while it runs, and afterwards with its real one.
  std::unique_ptr<UploadSession> under_way;
  ASSERT_TRUE(Bring(limits, "begun", 40, &under_way).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Bring(limits, "a")));
  under_way.reset();
  EXPECT_TRUE(Bring(limits, std::string(35, 'y')).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Bring(limits, "a")));
  // An older checkpoint was removed.
  ASSERT_TRUE(blobs_->Remove(io::Sha256Hex(whole)).ok());
  EXPECT_TRUE(Bring(limits, std::string(60, 'z')).ok());
}

TEST_F(DeliveryLimitsTest, TheLimitFollowsFromWeightsAndKeptCheckpoints) {
  ModelRecord model;
  model.node = "a";
  model.id = "/models/tiny";
  model.path = "/models/tiny";
  model.config_json = kConfig;
  ASSERT_TRUE(store_->Write([&](Database& db) { return store::PutModels(db, "a", {model}); }).ok());
  DeliveryLimits limits = With(10, disk_);
  EXPECT_TRUE(Bring(limits, std::string(1000, 'w')).ok()) << "what is not known does not count";
  const absl::Status refused = Bring(limits, "x", int64_t{1'200'000'000});
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(Message(refused).find("trained weights and 3 kept checkpoints"), std::string_view::npos)
      << refused;
}

TEST_F(DeliveryLimitsTest, TheNumberOfFilesIsLimited) {
  DeliveryLimits limits = With(1'000'000'000, disk_);
  for (int i = 0; i < DeliveryLimits::kMaxFiles; ++i) {
    const std::string hash = io::Sha256Hex(std::to_string(i));
    std::ofstream part(fmt::format("{}/blobs/uploads/{}.@a@{}.part", dir_, hash, uid_));
    ASSERT_TRUE(part << "p");
  }
  EXPECT_TRUE(absl::IsResourceExhausted(Bring(limits, "one more")));
}

TEST_F(DeliveryLimitsTest, AFullDiskKeepsDeliveriesOutLaterThanUploadsAndSaysWhy) {
  const int64_t free = io::SpaceOf(dir_)->free;
  DiskWatch full(dir_, {.full = {.bytes = 2 * free}}, clock_);
  EXPECT_FALSE(full.CheckRoom("an upload", 0).ok());
  DeliveryLimits limits = With(100, full);
  EXPECT_TRUE(Bring(limits, "a").ok()) << "what runs goes on";
  DiskWatch fuller(dir_, {.full = {.bytes = 8 * free}}, clock_);
  DeliveryLimits none = With(100, fuller);
  const absl::Status refused = Bring(none, "b");
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(Message(refused).find("a delivery of 1 B waits until there is room"),
            std::string_view::npos)
      << refused;
  EXPECT_EQ(Refused(), 1);
}

}  // namespace
}  // namespace sft::server
