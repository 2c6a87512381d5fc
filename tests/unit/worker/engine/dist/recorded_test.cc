#include "worker/engine/dist/recorded.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <ctime>

#include "common/io/file.h"
#include "tests/unit/worker/engine/dist/run_ranks.h"

namespace sft::engine {
namespace {

// Lends a communicator to something that wants to own one.
class Borrowed : public Communicator {
 public:
  explicit Borrowed(Communicator& comm) : comm_(comm) {}
  int rank() const override { return comm_.rank(); }
  int world() const override { return comm_.world(); }
  at::Device device() const override { return comm_.device(); }
  std::string_view backend() const override { return comm_.backend(); }
  WorkPtr AllReduceSumAsync(at::Tensor tensor) override { return comm_.AllReduceSumAsync(tensor); }
  WorkPtr AllGatherAsync(at::Tensor out, at::Tensor part, std::vector<int64_t> counts) override {
    return comm_.AllGatherAsync(out, part, counts);
  }
  WorkPtr ReduceScatterSumAsync(at::Tensor part, at::Tensor in,
                                std::vector<int64_t> counts) override {
    return comm_.ReduceScatterSumAsync(part, in, counts);
  }
  WorkPtr AllToAllAsync(at::Tensor out, at::Tensor in) override {
    return comm_.AllToAllAsync(std::move(out), std::move(in));
  }
  WorkPtr BroadcastAsync(at::Tensor tensor, int root) override {
    return comm_.BroadcastAsync(tensor, root);
  }
  WorkPtr SendAsync(at::Tensor tensor, int to) override { return comm_.SendAsync(tensor, to); }
  WorkPtr ReceiveAsync(at::Tensor tensor, int from) override {
    return comm_.ReceiveAsync(tensor, from);
  }
  void Barrier() override { comm_.Barrier(); }
  std::unique_ptr<Communicator> Connect(const std::string& name,
                                        const std::vector<int>& members) override {
    return comm_.Connect(name, members);
  }

 private:
  Communicator& comm_;
};

class RecordedTest : public testing::Test {
 protected:
  void SetUp() override { dir_ = *io::MakeTempDir("sft-recorded-test"); }
  void TearDown() override { ASSERT_TRUE(io::RemoveAll(dir_).ok()); }
  channel::FlightRecorder Flight(int rank, int world) {
    return *channel::FlightRecorder::Create(channel::FlightPath(dir_, rank), rank, world,
                                            Clock::Real());
  }
  channel::FlightRecord Read(int rank) {
    return *channel::ReadFlightRecord(channel::FlightPath(dir_, rank));
  }
  std::string dir_;
};

TEST_F(RecordedTest, EveryRankRecordsTheSameCollectivesAndTheResultsAreTheInnersOwn) {
  RunRanksOverGloo(3, [&](Communicator& inner) {
    channel::FlightRecorder flight = Flight(inner.rank(), 3);
    const auto comm = MakeRecordedCommunicator(std::make_unique<Borrowed>(inner), flight);
    at::Tensor tensor = at::full({1000}, comm->rank() + 1, at::kFloat);
    const WorkPtr work = comm->AllReduceSumAsync(tensor);
    EXPECT_TRUE(Read(comm->rank()).InCollective());
    work->Wait();
    EXPECT_TRUE(tensor.equal(at::full({1000}, 6, at::kFloat)));
    EXPECT_EQ(AllGatherInt64(*comm, comm->rank()), (std::vector<int64_t>{0, 1, 2}));
    comm->Barrier();
    EXPECT_FALSE(Read(comm->rank()).InCollective());
  });
  for (int rank = 0; rank < 3; ++rank) {
    const channel::FlightRecord record = Read(rank);
    ASSERT_EQ(record.ops.size(), 3u);
    EXPECT_EQ(record.ops[0].Describe(), "all-reduce #1 (4000 bytes, group world)");
    EXPECT_EQ(record.ops[1].Describe(), "all-gather #2 (24 bytes, group world)");
    EXPECT_EQ(record.ops[2].Describe(), "barrier #3 (0 bytes, group world)");
  }
}

TEST_F(RecordedTest, SubgroupsAreNamedByTheirRanks) {
  RunRanksOverGloo(4, [&](Communicator& inner) {
    channel::FlightRecorder flight = Flight(inner.rank(), 4);
    const auto comm = MakeRecordedCommunicator(std::make_unique<Borrowed>(inner), flight);
    const bool even = comm->rank() % 2 == 0;
    const auto group = MakeSubgroup(*comm, even ? std::vector{0, 2} : std::vector{1, 3});
    const size_t before = Read(comm->rank()).ops.size();
    EXPECT_EQ(AllGatherInt64(*group, comm->rank()),
              even ? (std::vector<int64_t>{0, 2}) : (std::vector<int64_t>{1, 3}));
    const channel::FlightRecord record = Read(comm->rank());
    EXPECT_EQ(record.ops.size(), before + 1);
    EXPECT_EQ(record.ops.back().group, even ? "0,2" : "1,3");
  });
}

TEST_F(RecordedTest, BothEndsOfAMessageAreOneOperationOfTheirGroup) {
  RunRanksOverGloo(2, [&](Communicator& inner) {
    channel::FlightRecorder flight = Flight(inner.rank(), 2);
    const auto comm = MakeRecordedCommunicator(std::make_unique<Borrowed>(inner), flight);
    const auto first = MakeSubgroup(*comm, {0, 1}), second = MakeSubgroup(*comm, {0, 1});
    at::Tensor tensor = at::full({4}, comm->rank());
    if (comm->rank() == 0) {
      second->SendAsync(tensor, 1)->Wait();
    } else {
      second->ReceiveAsync(tensor, 0)->Wait();
    }
  });
  for (int rank = 0; rank < 2; ++rank) {
    // A group's first two are those that it is checked with.
    const channel::FlightOp op = Read(rank).ops.back();
    EXPECT_EQ(op.Describe(), "message #3 (32 bytes, group 0,1#2)");
    EXPECT_TRUE(op.finished);
  }
}

TEST_F(RecordedTest, ACollectiveThatFailsStaysTheOneThatIsWaitedIn) {
  EXPECT_ANY_THROW(RunRanksOverGloo(
      2,
      [&](Communicator& inner) {
        if (inner.rank() == 1) return;
        channel::FlightRecorder flight = Flight(0, 2);
        const auto comm = MakeRecordedCommunicator(std::make_unique<Borrowed>(inner), flight);
        comm->AllReduceSum(at::ones({8}));
      },
      std::chrono::seconds(10)));
  EXPECT_EQ(Read(0).Describe(), "starting, waits in all-reduce #1 (32 bytes, group world)");
}

TEST_F(RecordedTest, ItCostsLittle) {
  channel::FlightRecorder flight = Flight(0, 1);
  const auto comm = MakeRecordedCommunicator(MakeLocalCommunicator(at::kCPU), flight);
  const at::Tensor tensor = at::ones({8});
  constexpr int kCalls = 20'000;
  const std::clock_t begin = std::clock();
  for (int i = 0; i < kCalls; ++i) comm->AllReduceSum(tensor);
  const double micros = 1e6 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / kCalls;
  printf("a recorded collective costs %.2f us\n", micros);
  EXPECT_LT(micros, 20);  // of the processor's time, whoever else has the machine; below 1 mostly
}

}  // namespace
}  // namespace sft::engine
