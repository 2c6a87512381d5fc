#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <numeric>
#include <vector>

#include "common/base/env.h"
#include "common/io/file.h"
#include "tests/gpu/gpu_test.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/dist/mesh.h"
#include "worker/engine/dist/recorded.h"
#include "worker/engine/dist/rendezvous.h"

namespace sft::engine {
namespace {

class NcclTest : public GpuTest {
 public:
  static const CudaDevices& Devices() { return *Plugin().devices; }

 protected:
  int GpusNeeded() const override { return 2; }
};

constexpr char kRank[] = "SFT_TEST_RANK", kPort[] = "SFT_TEST_PORT";

void RunRank(RendezvousOptions options, const std::function<void(Communicator&)>& body) {
  NcclTest::Devices().Select(options.rank);
  options.prefix = "nccl_test";
  options.timeout = std::chrono::seconds(60);
  const Rendezvous rendezvous(options);
  const auto comm =
      MakeCommunicator(rendezvous, at::Device(at::kCUDA, static_cast<int8_t>(options.rank)));
  EXPECT_EQ(comm->backend(), "nccl");
  body(*comm);
  comm->Barrier();
}

// One process a rank, one GPU each, as in a job: ranks of one process would share its mappings, and
// what frees memory waits for the kernels of all its GPUs. This process is rank 0, and starts the
// test again as each of the others.
void OnAllRanks(const std::function<void(Communicator&)>& body) {
  const int world = NcclTest::Devices().Count();
  if (const auto rank = GetEnv(kRank)) {
    RendezvousOptions options{.rank = std::stoi(*rank), .world = world};
    options.port = static_cast<uint16_t>(std::stoi(GetEnv(kPort).value()));
    RunRank(options, body);
    return;
  }
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::future<int>> others;
  RendezvousOptions options{.rank = 0, .world = world};
  options.on_listening = [&](uint16_t port) {
    for (int rank = 1; rank < world; ++rank) {
      const std::string command =
          fmt::format("{}={} {}={} '{}' --gtest_filter={}.{} >&2", kRank, rank, kPort, port,
                      program, test->test_suite_name(), test->name());
      others.push_back(
          std::async(std::launch::async, [command] { return std::system(command.c_str()); }));
    }
  };
  RunRank(options, body);
  for (size_t i = 0; i < others.size(); ++i) EXPECT_EQ(others[i].get(), 0) << "rank " << i + 1;
}

at::Tensor On(const Communicator& comm, const at::Tensor& tensor) {
  return tensor.to(comm.device());
}

// Part r of a whole whose parts have these counts: values that tell rank and place.
at::Tensor Part(const std::vector<int64_t>& counts, int rank, at::ScalarType type) {
  return at::arange(counts[rank], at::kLong).remainder(50).add_(rank).to(type);
}

at::Tensor Whole(const std::vector<int64_t>& counts, at::ScalarType type) {
  std::vector<at::Tensor> parts;
  for (int r = 0; r < static_cast<int>(counts.size()); ++r) parts.push_back(Part(counts, r, type));
  return at::cat(parts);
}

// Equal parts, uneven ones, and one that is empty.
std::vector<std::vector<int64_t>> PartCounts(int world) {
  std::vector<int64_t> even(world, 1000), uneven(world), empty(world, 333);
  std::iota(uneven.begin(), uneven.end(), 7);
  empty.back() = 0;
  return {even, uneven, empty};
}

TEST_F(NcclTest, AllReduceSumsAndLeavesTheSameBitsOnAllRanks) {
  OnAllRanks([](Communicator& comm) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong}) {
      at::Tensor ones = On(comm, at::ones({70'001}, type));
      comm.AllReduceSum(ones);
      EXPECT_TRUE(ones.cpu().eq(comm.world()).all().item<bool>()) << type;
    }
    at::Tensor fractions =
        On(comm, Normal({1'000'003}, 31 + static_cast<uint64_t>(comm.rank()))).to(at::kBFloat16);
    comm.AllReduceSum(fractions);
    const int64_t count = fractions.numel();
    at::Tensor all = On(comm, at::zeros({comm.world() * count}, at::kBFloat16));
    comm.AllGather(all, fractions, std::vector<int64_t>(comm.world(), count));
    for (int rank = 0; rank < comm.world(); ++rank) {
      EXPECT_TRUE(SameBits(all.narrow(0, rank * count, count), fractions)) << "rank " << rank;
    }
  });
}

TEST_F(NcclTest, GathersEvenUnevenAndEmptyPartsOfAnyType) {
  OnAllRanks([](Communicator& comm) {
    for (const auto& counts : PartCounts(comm.world())) {
      for (const auto type : {at::kByte, at::kBFloat16, at::kFloat}) {
        const at::Tensor expected = Whole(counts, type);
        const at::Tensor part = On(comm, Part(counts, comm.rank(), type));
        at::Tensor out = On(comm, at::zeros({expected.numel()}, type));
        comm.AllGather(out, part, counts);
        EXPECT_TRUE(SameBits(out, expected)) << type;
        // The part as the view of its own place.
        int64_t begin = 0;
        for (int r = 0; r < comm.rank(); ++r) begin += counts[r];
        at::Tensor in_place = On(comm, at::zeros({expected.numel()}, type));
        at::Tensor slot = in_place.narrow(0, begin, counts[comm.rank()]);
        slot.copy_(part);
        comm.AllGather(in_place, slot, counts);
        EXPECT_TRUE(SameBits(in_place, expected)) << type;
      }
    }
  });
}

TEST_F(NcclTest, ReduceScattersEvenUnevenAndEmptyParts) {
  OnAllRanks([](Communicator& comm) {
    for (const auto& counts : PartCounts(comm.world())) {
      for (const auto type : {at::kBFloat16, at::kFloat}) {
        at::Tensor in = On(comm, Whole(counts, type));
        at::Tensor part = On(comm, at::zeros({counts[comm.rank()]}, type));
        comm.ReduceScatterSum(part, in, counts);
        EXPECT_TRUE(SameBits(part, Part(counts, comm.rank(), type).mul_(comm.world()))) << type;
      }
    }
  });
}

// All ranks, and with four or more GPUs the rows and columns of a hybrid mesh. Several GPUs are
// needed: NCCL takes a GPU into a communicator once, and a group of one is local.
TEST_F(NcclTest, SubgroupsSumApartFromTheWorld) {
  OnAllRanks([](Communicator& comm) {
    std::vector<int> reversed(comm.world());
    std::iota(reversed.rbegin(), reversed.rend(), 0);
    const auto all = MakeSubgroup(comm, reversed);
    EXPECT_EQ(all->backend(), "nccl");
    EXPECT_EQ(all->rank(), comm.world() - 1 - comm.rank());
    at::Tensor ones = On(comm, at::ones({70'001}));
    all->AllReduceSum(ones);
    EXPECT_TRUE(ones.cpu().eq(comm.world()).all().item<bool>());
    EXPECT_EQ(MakeSubgroup(comm, {comm.rank()})->backend(), "local");
  });
}

TEST_F(NcclTest, AHybridMeshReducesWithinRowsAndThenOverTheirReplicas) {
  OnAllRanks([](Communicator& comm) {
    if (comm.world() % 2 != 0) return;
    const Mesh mesh(comm, {.replicate = 2, .shard = comm.world() / 2});
    Communicator &shard = mesh.Group(Axis::kShard), &replicas = mesh.Group(Axis::kReplicate);
    const std::vector<int64_t> counts = PartSizes(4097, shard.world());
    at::Tensor part = On(comm, at::zeros({counts[shard.rank()]}));
    // Both groups at work at once, and the world beside them.
    for (int step = 0; step < 20; ++step) {
      at::Tensor whole = On(comm, at::full({4097}, static_cast<float>(comm.rank() + step)));
      at::Tensor beside = On(comm, at::ones({1 << 20}));
      WorkPtr scatter = shard.ReduceScatterSumAsync(part, whole, counts);
      WorkPtr world = comm.AllReduceSumAsync(beside);
      scatter->Wait();
      WorkPtr sum = replicas.AllReduceSumAsync(part);
      sum->Wait();
      world->Wait();
      const int expected = comm.world() * (comm.world() - 1) / 2 + comm.world() * step;
      EXPECT_TRUE(part.eq(expected).all().item<bool>());
      EXPECT_TRUE(beside.eq(comm.world()).all().item<bool>());
    }
  });
}

TEST_F(NcclTest, BroadcastsAndCountsOverTheRanks) {
  OnAllRanks([](Communicator& comm) {
    const int root = comm.world() - 1;
    at::Tensor tensor = On(comm, at::full({4097}, comm.rank(), at::kChar));
    comm.Broadcast(tensor, root);
    EXPECT_TRUE(tensor.cpu().eq(root).all().item<bool>());
    EXPECT_EQ(AllGatherInt64(comm, 10 * comm.rank())[root], 10 * root);
    EXPECT_EQ(AllReduceSumDouble(comm, 0.5), 0.5 * comm.world());
  });
}

// Rank 1 computes for a while before it joins: the others wait for it, and it for nobody.
TEST_F(NcclTest, WaitsAreMeasuredOnTheStreamThatComputes) {
  OnAllRanks([](Communicator& comm) {
    const std::string dir = io::MakeTempDir("sft-nccl-test").value();
    auto flight = *channel::FlightRecorder::Create(channel::FlightPath(dir, comm.rank()),
                                                   comm.rank(), comm.world(), Clock::Real());
    TrafficMeter meter(comm.device(), Clock::Real());
    std::vector<int> everyone(comm.world());
    std::iota(everyone.begin(), everyone.end(), 0);
    const auto recorded = MakeRecordedCommunicator(comm.Connect("all", everyone), flight, &meter);
    recorded->NameAxis("replicate");
    const at::Tensor x = On(comm, at::ones({8192, 8192}, at::kBFloat16));
    at::Tensor y = at::empty_like(x), sum = On(comm, at::ones({1 << 20}));
    for (int step = 0; step < 3; ++step) {
      meter.BeginStep();
      for (int i = 0; i < (comm.rank() == 1 ? 100 : 1); ++i) at::mm_out(y, x, x);
      recorded->AllReduceSum(sum);
      EXPECT_TRUE(std::isfinite(sum.cpu()[0].item<double>()));
      meter.EndStep();
      const std::vector<AxisTraffic> axes = meter.LastStep();
      ASSERT_EQ(axes.size(), 1u);
      EXPECT_EQ(axes[0].axis, "replicate");
      if (step == 0) continue;  // libraries were loaded in it
      fmt::print("rank {}: {:.1f} % waited, {:.3f} GB/s\n", comm.rank(),
                 100 * axes[0].exposed_share, axes[0].gigabytes_per_second);
      EXPECT_GT(axes[0].gigabytes_per_second, 0);
      EXPECT_LE(axes[0].exposed_share, 1);
      EXPECT_EQ(axes[0].exposed_share < 0.4, comm.rank() == 1) << axes[0].exposed_share;
    }
    EXPECT_TRUE(io::RemoveAll(dir).ok());
  });
}

TEST_F(NcclTest, WorkAfterWaitSeesTheResultAndTensorsMayBeFreedBeforeIt) {
  OnAllRanks([](Communicator& comm) {
    std::vector<WorkPtr> works;
    std::vector<at::Tensor> kept;
    for (int i = 0; i < 8; ++i) {
      at::Tensor big = On(comm, at::full({1 << 22}, i + 1.0f));
      kept.push_back(big.view({-1}));
      works.push_back(comm.AllReduceSumAsync(big));
      comm.AllReduceSumAsync(On(comm, at::ones({1 << 20})));  // dropped at once
    }
    for (int i = 0; i < 8; ++i) {
      works[i]->Wait();
      EXPECT_TRUE(kept[i].eq((i + 1.0f) * comm.world()).all().item<bool>());
    }
  });
}

}  // namespace
}  // namespace sft::engine
