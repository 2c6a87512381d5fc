#include "worker/rank/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "common/io/file.h"
#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "worker/channel/event.h"
#include "worker/engine/base/error.h"

namespace sft::rank {
namespace {

using engine::Communicator;
using engine::WorkPtr;
using ::testing::HasSubstr;

// Passes everything on, and gathers of the groups made of it late, as a slow network would.
class LateCommunicator : public Communicator {
 public:
  LateCommunicator(Communicator& inner, std::chrono::milliseconds late)
      : inner_(inner), late_(late) {}
  LateCommunicator(std::unique_ptr<Communicator> own, std::chrono::milliseconds late)
      : own_(std::move(own)), inner_(*own_), late_(late), group_(true) {}
  int rank() const override { return inner_.rank(); }
  int world() const override { return inner_.world(); }
  at::Device device() const override { return inner_.device(); }
  std::string_view backend() const override { return inner_.backend(); }
  WorkPtr AllReduceSumAsync(at::Tensor tensor) override { return inner_.AllReduceSumAsync(tensor); }
  WorkPtr AllGatherAsync(at::Tensor out, at::Tensor part, std::vector<int64_t> counts) override {
    if (group_) std::this_thread::sleep_for(late_);
    return inner_.AllGatherAsync(out, part, counts);
  }
  WorkPtr ReduceScatterSumAsync(at::Tensor part, at::Tensor in,
                                std::vector<int64_t> counts) override {
    return inner_.ReduceScatterSumAsync(part, in, counts);
  }
  WorkPtr AllToAllAsync(at::Tensor out, at::Tensor in) override {
    return inner_.AllToAllAsync(std::move(out), std::move(in));
  }
  WorkPtr SendAsync(at::Tensor tensor, int to) override { return inner_.SendAsync(tensor, to); }
  WorkPtr ReceiveAsync(at::Tensor tensor, int from) override {
    return inner_.ReceiveAsync(tensor, from);
  }
  WorkPtr BroadcastAsync(at::Tensor tensor, int root) override {
    return inner_.BroadcastAsync(tensor, root);
  }
  void Barrier() override { inner_.Barrier(); }
  std::unique_ptr<Communicator> Connect(const std::string& name,
                                        const std::vector<int>& members) override {
    return std::make_unique<LateCommunicator>(inner_.Connect(name, members), late_);
  }

 private:
  std::unique_ptr<Communicator> own_;
  Communicator& inner_;
  std::chrono::milliseconds late_;
  bool group_ = false;
};

class PreflightTest : public ::testing::Test {
 protected:
  void SetUp() override { dir_ = io::MakeTempDir("sft-preflight-test").value(); }
  void TearDown() override { ASSERT_TRUE(io::RemoveAll(dir_).ok()); }

  // Of each rank, the code with which its preflight ended; empty: training may start. The ranks of
  // node `late` are.
  std::vector<std::string> Run(int nodes, int per_node, int late = -1) {
    std::vector<std::string> codes(static_cast<size_t>(nodes * per_node));
    engine::RunRanks(nodes * per_node, [&](Communicator& inner) {
      const int node = inner.rank() / per_node;
      Launch launch;
      launch.file.world_size = nodes * per_node;
      launch.file.local_ranks = per_node;
      launch.file.first_rank = node * per_node;
      launch.file.node = "node-" + std::to_string(node);
      launch.file.cache_dir = dir_ + "/" + launch.file.node;
      EXPECT_TRUE(io::MakeDirs(launch.file.cache_dir).ok());
      EventLog events = EventLog::Open(EventsOf(inner.rank()), Clock::Real());
      LateCommunicator comm(inner, std::chrono::milliseconds(node == late ? 60 : 0));
      try {
        RunPreflight(launch, inner.rank(), Device(), comm, events, Clock::Real());
      } catch (const engine::InfrastructureError& error) {
        codes[static_cast<size_t>(inner.rank())] = error.code();
      }
    });
    return codes;
  }
  std::string EventsOf(int rank) const {
    return dir_ + "/rank-" + std::to_string(rank) + ".events";
  }
  std::string History(int node) const {
    return io::ReadFile(dir_ + "/node-" + std::to_string(node) + "/preflight.json").value_or("");
  }

  std::string dir_;
};

TEST_F(PreflightTest, NodesMeasureTheNetworkBetweenThemAndKeepIt) {
  EXPECT_EQ(Run(2, 2), std::vector<std::string>(4));
  for (const int node : {0, 1}) EXPECT_THAT(History(node), HasSubstr("between 2 cpu"));
  EXPECT_EQ(io::ReadFile(EventsOf(0)).value(), "") << "nothing to say";
}

TEST_F(PreflightTest, ANodeBehindABrokenNetworkIsBlamedAndTheOthersOnlyEnd) {
  EXPECT_EQ(Run(3, 1, 2), (std::vector<std::string>{"collective_failed", "collective_failed",
                                                    "preflight_failed"}));
  const std::string events = io::ReadFile(EventsOf(0)).value();
  EXPECT_THAT(events, HasSubstr("node node-2: its network to other nodes is broken"));
  EXPECT_THAT(events, HasSubstr("\"preflight\""));
  EXPECT_EQ(io::ReadFile(EventsOf(1)).value(), "") << "rank 0 says it for all";
}

TEST_F(PreflightTest, OneNodeOfCpusHasNothingToMeasure) {
  EXPECT_EQ(Run(1, 3), std::vector<std::string>(3));
  EXPECT_EQ(History(0), "");
}

TEST_F(PreflightTest, AHistoryThatCannotBeReadIsBegunAnew) {
  for (const char* text : {"", "[1, 2]", "{\"between 1 cpu\": {\"a\": 1}}",
                           "{\"between 1 cpu\": [\"x\"]}", "\xff\xfe"}) {
    for (const int node : {0, 1}) {
      const std::string folder = dir_ + "/node-" + std::to_string(node);
      ASSERT_TRUE(io::MakeDirs(folder).ok());
      ASSERT_TRUE(io::WriteFileAtomic(folder + "/preflight.json", text).ok());
    }
    EXPECT_EQ(Run(2, 1), std::vector<std::string>(2)) << text;
    EXPECT_THAT(History(0), HasSubstr("between 1 cpu"));
  }
}

}  // namespace
}  // namespace sft::rank
