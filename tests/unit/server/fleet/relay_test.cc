#include "server/fleet/file_relay.h"
#include "server/stored/artifacts.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

class RelayTest : public FleetTest {
 protected:
  RelayTest() : relay_(*registry_) {}
  ~RelayTest() override = default;

  static v1::SendFileRequest Chunk(const std::string& request, int64_t offset,
                                   const std::string& data) {
    v1::SendFileRequest chunk;
    chunk.set_request(request);
    chunk.set_offset(offset);
    chunk.set_data(data);
    chunk.set_total_size(6);
    return chunk;
  }

  FileRelay relay_;
};

TEST_F(RelayTest, RelaysANodesFile) {
  const auto worker = Join("a", "CPU", 1);
  auto transfer = relay_.Start("a", "/shared/x", 0, {}).value();
  ASSERT_EQ(worker->fetches.size(), 1u);
  const std::string request = worker->fetches[0].request();
  EXPECT_EQ(worker->fetches[0].path(), "/shared/x");
  ASSERT_TRUE(relay_.Push(Chunk(request, 0, "abc")).ok());
  ASSERT_TRUE(relay_.Push(Chunk(request, 3, "def")).ok());
  relay_.End(request);
  EXPECT_EQ(transfer->Next()->data(), "abc");
  EXPECT_EQ(transfer->Next()->data(), "def");
  EXPECT_TRUE(transfer->Next()->request().empty());
}

TEST_F(RelayTest, ANodeThatCannotReadTheFileSaysWhy) {
  const auto worker = Join("a", "CPU", 1);
  auto transfer = relay_.Start("a", "/x", 0, {}).value();
  v1::SendFileRequest error;
  error.set_request(worker->fetches[0].request());
  error.set_error("/x is not below an allowed folder");
  ASSERT_TRUE(relay_.Push(error).ok());
  const absl::Status status = transfer->Next().status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_NE(Message(status).find("allowed folder"), std::string_view::npos);
}

TEST_F(RelayTest, AChunkOutOfOrderIsRefused) {
  const auto worker = Join("a", "CPU", 1);
  auto transfer = relay_.Start("a", "/x", 3, {}).value();
  const std::string request = worker->fetches[0].request();
  for (const int64_t offset : {int64_t{0}, int64_t{4}, int64_t{-1}, int64_t{1} << 62}) {
    EXPECT_TRUE(absl::IsInvalidArgument(relay_.Push(Chunk(request, offset, "d")))) << offset;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(relay_.Push(Chunk(request, 3, "more than six"))));
  EXPECT_TRUE(relay_.Push(Chunk(request, 3, "def")).ok());
}

TEST_F(RelayTest, ANodeThatIsAwayOrSendsNothingIsAnError) {
  EXPECT_TRUE(absl::IsUnavailable(relay_.Start("none", "/x", 0, {}).status()));
  Join("a", "CPU", 1);
  auto transfer = relay_.Start("a", "/x", 0, {}).value();
  EXPECT_TRUE(absl::IsDeadlineExceeded(transfer->Next(Nanos(1)).status()));
}

TEST_F(RelayTest, AChunkNobodyWaitsForIsRefused) {
  const auto worker = Join("a", "CPU", 1);
  relay_.Start("a", "/x", 0, {})->reset();
  EXPECT_TRUE(absl::IsNotFound(relay_.Push(Chunk(worker->fetches[0].request(), 0, "abc"))));
}

TEST_F(RelayTest, TransfersAreLimited) {
  Join("a", "CPU", 1);
  std::vector<std::unique_ptr<FileRelay::Transfer>> all;
  for (int i = 0; i < FileRelay::kMaxTransfers; ++i)
    all.push_back(relay_.Start("a", "/x", 0, {}).value());
  EXPECT_TRUE(absl::IsResourceExhausted(relay_.Start("a", "/x", 0, {}).status()));
}

}  // namespace
}  // namespace sft::server
