#include <atomic>
#include <thread>

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

TEST_F(RelayTest, QuestionsAreCountedApartFromFilesAndByJob) {
  for (const char* node : {"a", "b", "c", "d"}) Join(node, "CPU", 1);
  std::vector<std::unique_ptr<FileRelay::Transfer>> all;
  const auto asks = [&](const std::string& uid, const std::string& node = "a") {
    auto transfer = relay_.Ask(node, uid, "{}");
    if (!transfer.ok()) return transfer.status();
    all.push_back(*std::move(transfer));
    return absl::OkStatus();
  };
  for (int i = 0; i < FileRelay::kMaxQuestionsOfJob; ++i) ASSERT_TRUE(asks("one").ok()) << i;
  const absl::Status full = asks("one");
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_EQ(Message(full), "64 questions to this job are being answered: try again later");
  EXPECT_EQ(relay_.LeastAsked({"a", "b", "c"}, "one"), "b");
  EXPECT_EQ(relay_.LeastAsked({"a", "b"}, "another"), "a");
  ASSERT_TRUE(asks("one", "b").ok()) << "its process there has as much room";
  all.pop_back();
  EXPECT_TRUE(relay_.Start("a", "/x", 0, {}).ok());
  for (int i = FileRelay::kMaxQuestionsOfJob; i < FileRelay::kMaxQuestions; ++i) {
    const std::string node(1, static_cast<char>('a' + i / 64));
    ASSERT_TRUE(asks("job on " + node, node).ok()) << i;
  }
  const absl::Status all_full = asks("another");
  EXPECT_TRUE(absl::IsResourceExhausted(all_full));
  EXPECT_EQ(Message(all_full), "256 questions are being answered: try again later");
  EXPECT_TRUE(relay_.Start("a", "/x", 0, {}).ok());
  all.clear();
  for (int i = 0; i < FileRelay::kMaxQuestionsOfNode; ++i) {
    ASSERT_TRUE(asks("job " + std::to_string(i % 2)).ok()) << i;
  }
  EXPECT_EQ(Message(asks("one")), "80 questions to jobs on a are being answered: try again later");
  EXPECT_TRUE(asks("another", "b").ok());
  all.clear();
  EXPECT_TRUE(asks("one").ok());
}

TEST_F(RelayTest, OneThatIsSilentIsGivenUpWhileAnotherStreams) {
  const auto worker = Join("a", "CPU", 1);
  auto silent = relay_.Ask("a", "uid", "{}").value();
  auto streams = relay_.Start("a", "/x", 0, {}).value();
  const std::string request = worker->fetches[0].request();
  std::atomic<bool> over = false;
  std::thread node([&] {
    // A second of wake-ups, if the other transfer's were its own.
    for (int64_t i = 0; i < 100 && !over; ++i) {
      v1::SendFileRequest chunk = Chunk(request, i, "a");
      chunk.set_total_size(i + 1);
      EXPECT_TRUE(relay_.Push(chunk).ok());
      EXPECT_EQ(streams->Next()->data(), "a");
      Clock::Real().Sleep(std::chrono::milliseconds(10));
    }
    EXPECT_TRUE(over) << "the silent one was not given up";
  });
  const absl::Status status = silent->Next(std::chrono::milliseconds(100)).status();
  over = true;
  node.join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(Message(status), "the job on a has not answered for 1 s");
}

TEST_F(RelayTest, AWaitEndsSoonAfterItsCallerAndItsNode) {
  const auto worker = Join("a", "CPU", 1);
  auto transfer = relay_.Ask("a", "uid", "{}").value();
  EXPECT_TRUE(
      absl::IsCancelled(transfer->Next(FileRelay::kPatience, [] { return true; }).status()));
  registry_->Disconnect("a", worker.get());
  const absl::Status away = transfer->Next().status();
  EXPECT_TRUE(absl::IsUnavailable(away)) << away;
  EXPECT_EQ(Message(away), "a, where the job runs, is not connected now");
  EXPECT_EQ(Message(relay_.Ask("a", "uid", "{}").status()),
            "a, where the job runs, is not connected now");
}

}  // namespace
}  // namespace sft::server
