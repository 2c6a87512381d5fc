#include "worker/engine/dist/traffic.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "common/io/file.h"
#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "worker/engine/dist/mesh.h"
#include "worker/engine/dist/recorded.h"

namespace sft::engine {
namespace {

using std::chrono::milliseconds;

// A group of `world` ranks, every wait of which takes 30 ms.
class SlowGroup : public Communicator {
 public:
  SlowGroup(int world, FakeClock& clock) : world_(world), clock_(clock) {}
  int rank() const override { return 0; }
  int world() const override { return world_; }
  at::Device device() const override { return at::kCPU; }
  std::string_view backend() const override { return "slow"; }
  WorkPtr AllReduceSumAsync(at::Tensor) override { return Start(); }
  WorkPtr AllGatherAsync(at::Tensor, at::Tensor, std::vector<int64_t>) override { return Start(); }
  WorkPtr ReduceScatterSumAsync(at::Tensor, at::Tensor, std::vector<int64_t>) override {
    return Start();
  }
  WorkPtr BroadcastAsync(at::Tensor, int) override { return Start(); }
  WorkPtr AllToAllAsync(at::Tensor, at::Tensor) override { return Start(); }
  WorkPtr SendAsync(at::Tensor, int) override { return Start(); }
  WorkPtr ReceiveAsync(at::Tensor, int) override { return Start(); }
  void Barrier() override { Start()->Wait(); }
  std::unique_ptr<Communicator> Connect(const std::string&,
                                        const std::vector<int>& members) override {
    return std::make_unique<SlowGroup>(static_cast<int>(members.size()), clock_);
  }

 private:
  class SlowWork : public Work {
   public:
    explicit SlowWork(FakeClock& clock) : clock_(clock) {}
    void Wait() override { clock_.Advance(milliseconds(30)); }

   private:
    FakeClock& clock_;
  };
  WorkPtr Start() { return std::make_unique<SlowWork>(clock_); }

  int world_;
  FakeClock& clock_;
};

class TrafficTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = *io::MakeTempDir("sft-traffic-test");
    flight_.emplace(*channel::FlightRecorder::Create(channel::FlightPath(dir_, 0), 0, 4, clock_));
    comm_ = MakeRecordedCommunicator(std::make_unique<SlowGroup>(4, clock_), *flight_, &meter_);
  }
  void TearDown() override { ASSERT_TRUE(io::RemoveAll(dir_).ok()); }

  FakeClock clock_;
  TrafficMeter meter_{at::kCPU, clock_};
  std::string dir_;
  std::optional<channel::FlightRecorder> flight_;
  std::unique_ptr<Communicator> comm_;
};

TEST_F(TrafficTest, CountsWhatEachAxisIsWaitedForAndSends) {
  // Ranks 0 and 2 hold one shard; what is not told of itself is a group.
  const auto column = comm_->Connect("replicate", {0, 2});
  column->NameAxis("replicate");
  const at::Tensor tensor = at::zeros({1'000'000}, at::kFloat);
  EXPECT_TRUE(meter_.LastStep().empty());
  meter_.BeginStep();
  clock_.Advance(milliseconds(110));
  comm_->AllReduceSum(tensor);
  column->AllReduceSum(tensor);
  column->AllReduceSum(tensor);
  EXPECT_TRUE(meter_.LastStep().empty()) << "the step has not ended";
  meter_.EndStep();

  const std::vector<AxisTraffic> axes = meter_.LastStep();
  ASSERT_EQ(axes.size(), 2u);
  EXPECT_EQ(axes[0].axis, "world");
  EXPECT_NEAR(axes[0].exposed_share, 30.0 / 200, 1e-9);
  // An all-reduce sends each byte twice, but for the own part.
  EXPECT_NEAR(axes[0].gigabytes_per_second, 2 * 0.75 * 4e6 / 0.2 / 1e9, 1e-9);
  EXPECT_EQ(axes[1].axis, "replicate");
  EXPECT_NEAR(axes[1].exposed_share, 60.0 / 200, 1e-9);
  EXPECT_NEAR(axes[1].gigabytes_per_second, 2 * 2 * 0.5 * 4e6 / 0.2 / 1e9, 1e-9);
  EXPECT_EQ(meter_.LastStep().size(), 2u) << "and again";
}

TEST_F(TrafficTest, CountsNothingBetweenStepsAndEachStepAlone) {
  const at::Tensor tensor = at::zeros({1000}, at::kFloat);
  comm_->AllReduceSum(tensor);
  meter_.BeginStep();
  comm_->Barrier();
  clock_.Advance(milliseconds(30));
  meter_.EndStep();
  comm_->AllReduceSum(tensor);  // of a checkpoint
  ASSERT_EQ(meter_.LastStep().size(), 1u);
  EXPECT_NEAR(meter_.LastStep()[0].exposed_share, 0.5, 1e-9);
  EXPECT_EQ(meter_.LastStep()[0].gigabytes_per_second, 0);

  meter_.BeginStep();
  comm_->Broadcast(tensor, 0);
  meter_.EndStep();
  EXPECT_NEAR(meter_.LastStep()[0].exposed_share, 1, 1e-9);
  EXPECT_NEAR(meter_.LastStep()[0].gigabytes_per_second, 0.75 * 4000 / 0.03 / 1e9, 1e-12);
}

TEST_F(TrafficTest, AStepThatWasNotEndedIsForgotten) {
  meter_.BeginStep();
  comm_->Barrier();
  meter_.BeginStep();
  clock_.Advance(milliseconds(10));
  meter_.EndStep();
  EXPECT_TRUE(meter_.LastStep().empty());
}

TEST(MeshTrafficTest, TheMeshNamesItsAxes) {
  const std::string dir = *io::MakeTempDir("sft-traffic-test");
  const auto body = [&](std::unique_ptr<Communicator> inner, channel::FlightRecorder& flight) {
    TrafficMeter meter(at::kCPU, Clock::Real());
    const auto comm = MakeRecordedCommunicator(std::move(inner), flight, &meter);
    const Mesh mesh(*comm, {.replicate = 2, .shard = 2});
    meter.BeginStep();
    const at::Tensor tensor = at::ones({1000});
    mesh.Group(Axis::kShard).AllReduceSum(tensor);
    mesh.Group(Axis::kReplicate).AllReduceSum(tensor);
    meter.EndStep();
    std::vector<std::string> names;
    for (const AxisTraffic& each : meter.LastStep()) {
      names.push_back(each.axis);
      EXPECT_GT(each.gigabytes_per_second, 0);
    }
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names, (std::vector<std::string>{"replicate", "shard"}));
  };
  RunRanksOverGloo(4, [&](Communicator& comm) {
    auto flight = *channel::FlightRecorder::Create(channel::FlightPath(dir, comm.rank()),
                                                   comm.rank(), 4, Clock::Real());
    body(comm.Connect("all", {0, 1, 2, 3}), flight);
  });
  ASSERT_TRUE(io::RemoveAll(dir).ok());
}

}  // namespace
}  // namespace sft::engine
