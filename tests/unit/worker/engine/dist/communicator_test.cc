#include "worker/engine/dist/communicator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <string>
#include <tuple>

#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "worker/engine/base/error.h"
#include "worker/engine/dist/mesh.h"

namespace sft::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor Ramp(int64_t count, at::ScalarType type) {
  return at::arange(count, at::kLong).remainder(97).to(type);
}

// Of so many ranks, in memory (thread_communicator.h) or over Gloo: they are held to the same.
class CommunicatorTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  bool over_gloo() const { return std::get<0>(GetParam()) == "gloo"; }
  int world() const { return std::get<1>(GetParam()); }
  void Run(const std::function<void(Communicator&)>& body) const {
    over_gloo() ? RunRanksOverGloo(world(), body) : RunRanks(world(), body);
  }
};

TEST_P(CommunicatorTest, AllReduceSumsInEveryType) {
  const int world = this->world();
  Run([&](Communicator& comm) {
    EXPECT_EQ(comm.world(), world);
    EXPECT_EQ(comm.backend(), world == 1 ? "local" : std::get<0>(GetParam()));
    for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong}) {
      for (const int64_t count : {0, 1, 3, 1000, 70'001}) {
        at::Tensor tensor = Ramp(count, type).mul_(comm.rank() % 2 + 1);
        comm.AllReduceSum(tensor);
        const int64_t factor = world + world / 2;
        EXPECT_TRUE(tensor.equal(Ramp(count, type).mul_(factor))) << type << " " << count;
      }
    }
  });
}

TEST_P(CommunicatorTest, SumOfFractionsHasTheSameBitsOnAllRanksAndInEachRun) {
  const int world = this->world();
  std::vector<std::vector<at::Tensor>> results(2, std::vector<at::Tensor>(world));
  for (auto& run : results) {
    Run([&](Communicator& comm) {
      at::Tensor tensor =
          at::arange(10'007, at::kFloat).mul_(0.1f).add_(1.0f / (comm.rank() + 3)).sin_();
      comm.AllReduceSum(tensor);
      run[comm.rank()] = tensor;
    });
  }
  for (const auto& run : results) {
    for (const at::Tensor& tensor : run) EXPECT_TRUE(tensor.equal(results[0][0]));
  }
}

TEST_P(CommunicatorTest, GathersUnevenAndEmptyPartsOfAnyType) {
  const int world = this->world();
  std::vector<int64_t> counts(world, 0);
  for (int r = 0; r < world; ++r) counts[r] = r == 1 ? 0 : 5 * r + 2;
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  Run([&](Communicator& comm) {
    const int64_t begin = std::accumulate(counts.begin(), counts.begin() + comm.rank(), int64_t{0});
    for (const auto type : {at::kByte, at::kChar, at::kBFloat16, at::kFloat, at::kLong}) {
      const at::Tensor whole = Ramp(total, type);
      at::Tensor out = at::zeros_like(whole);
      comm.AllGather(out, whole.narrow(0, begin, counts[comm.rank()]).clone(), counts);
      EXPECT_TRUE(out.equal(whole)) << type;
    }
  });
}

TEST_P(CommunicatorTest, GathersIntoTheBufferThatHoldsTheOwnPart) {
  const int world = this->world();
  for (const bool even : {true, false}) {
    const std::vector<int64_t> counts =
        even ? std::vector<int64_t>(world, 8) : PartSizes(8 * world - 3, world, 4);
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    Run([&](Communicator& comm) {
      const int64_t begin =
          std::accumulate(counts.begin(), counts.begin() + comm.rank(), int64_t{0});
      at::Tensor out = at::full({total}, -1, at::kFloat);
      at::Tensor mine = out.narrow(0, begin, counts[comm.rank()]);
      mine.copy_(Ramp(total, at::kFloat).narrow(0, begin, counts[comm.rank()]));
      comm.AllGather(out, mine, counts);
      EXPECT_TRUE(out.equal(Ramp(total, at::kFloat)));
    });
  }
}

TEST_P(CommunicatorTest, ReduceScatterGivesEachRankItsPartOfTheAllReduce) {
  const int world = this->world();
  const std::vector<int64_t> counts = PartSizes(5 * world - 4, world, 3);
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  Run([&](Communicator& comm) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor in = Ramp(total, at::kFloat).div_(7).mul_(comm.rank() + 1).to(type);
      at::Tensor summed = in.clone();
      comm.AllReduceSum(summed);
      const int64_t begin =
          std::accumulate(counts.begin(), counts.begin() + comm.rank(), int64_t{0});
      at::Tensor part = at::zeros({counts[comm.rank()]}, type);
      comm.ReduceScatterSum(part, in.clone(), counts);
      EXPECT_TRUE(part.equal(summed.narrow(0, begin, counts[comm.rank()])));
      at::Tensor inside = in.clone();
      comm.ReduceScatterSum(inside.narrow(0, begin, counts[comm.rank()]), inside, counts);
      EXPECT_TRUE(inside.narrow(0, begin, counts[comm.rank()]).equal(part));
    }
  });
}

TEST_P(CommunicatorTest, AllToAllGivesEachRankItsPartOfEveryRank) {
  const int world = this->world();
  Run([&](Communicator& comm) {
    for (const auto type : {at::kByte, at::kBFloat16, at::kFloat, at::kLong}) {
      for (const int64_t count : {0, 1, 5}) {
        const auto part_of = [&](int from, int to) {
          return at::full({count}, (from * world + to) % 100, type);
        };
        std::vector<at::Tensor> sent, expected;
        for (int rank = 0; rank < world; ++rank) {
          sent.push_back(part_of(comm.rank(), rank));
          expected.push_back(part_of(rank, comm.rank()));
        }
        at::Tensor out = at::zeros({world * count}, type);
        comm.AllToAll(out, at::cat(sent));
        EXPECT_TRUE(out.equal(at::cat(expected))) << type << " " << count;
      }
    }
  });
}

TEST_P(CommunicatorTest, BroadcastGivesRootsBytesToAll) {
  const int world = this->world();
  Run([&](Communicator& comm) {
    const int root = world - 1;
    at::Tensor tensor = comm.rank() == root ? Ramp(33, at::kBFloat16).view({3, 11})
                                            : at::zeros({3, 11}, at::kBFloat16);
    comm.Broadcast(tensor, root);
    EXPECT_TRUE(tensor.equal(Ramp(33, at::kBFloat16).view({3, 11})));
    comm.Barrier();
  });
}

TEST_P(CommunicatorTest, CollectivesUnderWayAtOnceDoNotMix) {
  Run([&](Communicator& comm) {
    std::vector<at::Tensor> tensors;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(at::full({100 + i}, i, at::kFloat));
      works.push_back(comm.AllReduceSumAsync(tensors.back()));
    }
    for (auto work = works.rbegin(); work != works.rend(); ++work) (*work)->Wait();
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(tensors[i].equal(at::full({100 + i}, i * comm.world(), at::kFloat)));
    }
  });
}

TEST_P(CommunicatorTest, SmallValuesAreGatheredInRankOrder) {
  const int world = this->world();
  Run([&](Communicator& comm) {
    const std::vector<int64_t> all = AllGatherInt64(comm, 10 + comm.rank());
    ASSERT_EQ(static_cast<int>(all.size()), world);
    for (int r = 0; r < world; ++r) EXPECT_EQ(all[r], 10 + r);
    EXPECT_EQ(AllReduceSumDouble(comm, 0.5), 0.5 * world);
    EXPECT_TRUE(EqualOnAllRanks(comm, "same"));
    EXPECT_EQ(EqualOnAllRanks(comm, comm.rank() == 0 ? "same" : "else"), world == 1);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, CommunicatorTest,
                         ::testing::Combine(::testing::Values("threads", "gloo"),
                                            ::testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::to_string(std::get<1>(info.param));
                         });

TEST(ThreadCommunicatorTest, RanksThatCallDifferentCollectivesAreTold) {
  EXPECT_THROW(RunRanks(2,
                        [](Communicator& comm) {
                          at::Tensor tensor = at::ones({3});
                          if (comm.rank() == 0) {
                            comm.AllReduceSum(tensor);
                          } else {
                            comm.Broadcast(tensor, 0);
                          }
                        }),
               Error);
}

TEST(ThreadCommunicatorTest, ARankThatHasLeftIsNotWaitedFor) {
  try {
    RunRanks(2, [](Communicator& comm) {
      if (comm.rank() == 1) return;
      comm.AllReduceSum(at::ones({3}));
    });
    FAIL();
  } catch (const InfrastructureError& error) {
    EXPECT_THAT(error.what(), HasSubstr("all-reduce of 3 elements: a rank has left"));
  }
}

TEST(CommunicatorErrorsTest, CountsThatDoNotFitAreRefusedBeforeAnythingIsSent) {
  RunRanksOverGloo(2, [&](Communicator& comm) {
    at::Tensor out = at::zeros({4});
    EXPECT_THROW(comm.AllGather(out, at::zeros({3}), {2, 2}), InternalError);
    EXPECT_THROW(comm.AllGather(out, at::zeros({2}, at::kBFloat16), {2, 2}), InternalError);
    EXPECT_THROW(comm.ReduceScatterSum(at::zeros({2}), out, {2, 1}), InternalError);
    EXPECT_THROW(comm.AllReduceSum(at::zeros({4, 4}).t().narrow(0, 0, 2)), InternalError);
    comm.Barrier();
  });
}

TEST(CommunicatorErrorsTest, APeerThatIsGoneNamesTheCollectiveAndTheRank) {
  const auto run = [] {
    RunRanksOverGloo(
        2,
        [](Communicator& comm) {
          if (comm.rank() == 1) return;
          at::Tensor tensor = at::ones({7});
          comm.AllReduceSum(tensor);
        },
        std::chrono::seconds(5));
  };
  try {
    run();
    FAIL() << "a sum without the peer succeeded";
  } catch (const InfrastructureError& error) {
    EXPECT_THAT(error.what(), HasSubstr("all-reduce"));
    EXPECT_THAT(error.what(), HasSubstr("7 elements"));
    EXPECT_THAT(error.what(), HasSubstr("rank 0 of 2"));
    EXPECT_THAT(error.advice(), HasSubstr("logs of the other ranks"));
    EXPECT_EQ(error.code(), "collective_failed");
  }
}

TEST(PartSizesTest, CutsInUnitsAndLeavesTheLastRanksShortOrEmpty) {
  EXPECT_THAT(PartSizes(10, 2), ElementsAre(5, 5));
  EXPECT_THAT(PartSizes(10, 4), ElementsAre(3, 3, 3, 1));
  EXPECT_THAT(PartSizes(4, 3), ElementsAre(2, 2, 0));
  EXPECT_THAT(PartSizes(130, 4, 64), ElementsAre(64, 64, 2, 0));
  EXPECT_THAT(PartSizes(0, 2, 64), ElementsAre(0, 0));
  EXPECT_THROW(PartSizes(1, 0), InternalError);
}

TEST(SubgroupTest, GroupsOfOneWorldSumApartAndInTheOrderOfTheirMembers) {
  RunRanksOverGloo(5, [](Communicator& comm) {
    // 3 and 0 the wrong way round; 1, 2 and 4 beside them.
    const bool pair = comm.rank() == 0 || comm.rank() == 3;
    const std::vector<int> members = pair ? std::vector<int>{3, 0} : std::vector<int>{1, 2, 4};
    const auto group = MakeSubgroup(comm, members);
    EXPECT_EQ(group->world(), pair ? 2 : 3);
    EXPECT_EQ(group->backend(), "gloo");
    EXPECT_EQ(members[group->rank()], comm.rank());
    const std::vector<int64_t> all = AllGatherInt64(*group, comm.rank());
    EXPECT_EQ(all, std::vector<int64_t>(members.begin(), members.end()));
    EXPECT_EQ(AllReduceSumDouble(*group, comm.rank()), pair ? 3.0 : 7.0);
    EXPECT_EQ(AllReduceSumDouble(comm, 1), 5.0);
  });
}

TEST(SubgroupTest, OneListMayBeConnectedTwiceAndAGroupOfOneIsLocal) {
  RunRanksOverGloo(2, [](Communicator& comm) {
    for (int i = 0; i < 2; ++i) {
      const auto group = MakeSubgroup(comm, {0, 1});
      EXPECT_EQ(AllReduceSumDouble(*group, 2), 4.0);
    }
    EXPECT_EQ(MakeSubgroup(comm, {comm.rank()})->backend(), "local");
  });
}

TEST(SubgroupTest, AListWithoutTheCallerOrBeyondTheWorldIsRefused) {
  const auto comm = MakeLocalCommunicator(at::kCPU);
  EXPECT_THROW(MakeSubgroup(*comm, {1}), InternalError);
  EXPECT_THROW(MakeSubgroup(*comm, {0, 1}), InternalError);
  EXPECT_THROW(MakeSubgroup(*comm, {}), InternalError);
}

TEST_P(CommunicatorTest, MessagesArriveWholeAndInOrderBothWays) {
  const int world = this->world();
  if (world == 1) return;
  Run([&](Communicator& comm) {
    if (comm.rank() > 1) return;
    const auto there = MakeSubgroup(comm, {0, 1}), back = MakeSubgroup(comm, {1, 0});
    const bool sends = comm.rank() == 0;
    // Both ways at once, of different types and sizes, an empty one among them.
    std::vector<WorkPtr> works;
    std::vector<at::Tensor> got;
    for (const int64_t count : {70'001, 0, 3}) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        got.push_back(at::zeros({count}, type));
        Communicator& in = sends ? *back : *there;
        Communicator& out = sends ? *there : *back;
        works.push_back(in.ReceiveAsync(got.back(), in.rank() == 0 ? 1 : 0));
        works.push_back(out.SendAsync(Ramp(count, type).mul_(comm.rank() + 1), 1));
      }
    }
    for (const WorkPtr& work : works) work->Wait();
    size_t next = 0;
    for (const int64_t count : {70'001, 0, 3}) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        EXPECT_TRUE(got[next++].equal(Ramp(count, type).mul_(2 - comm.rank()))) << count;
      }
    }
  });
}

TEST(CommunicatorMessageTest, ASenderThatHasGoneIsNamedAsTheCause) {
  try {
    RunRanksOverGloo(
        2,
        [](Communicator& comm) {
          if (comm.rank() == 1) return;
          at::Tensor tensor = at::zeros({8});
          comm.ReceiveAsync(tensor, 1)->Wait();
        },
        std::chrono::seconds(10));
    FAIL() << "a message arrived that nobody sent";
  } catch (const InfrastructureError& error) {
    EXPECT_THAT(error.what(), HasSubstr("receive (collective"));
    EXPECT_THAT(error.advice(), HasSubstr("Another rank has ended"));
  }
}

TEST(CommunicatorMessageTest, AWorldOfOneHasNobodyToSendTo) {
  const auto comm = MakeLocalCommunicator(at::kCPU);
  EXPECT_THROW((void)comm->SendAsync(at::zeros({1}), 0), InternalError);
  EXPECT_THROW((void)comm->ReceiveAsync(at::zeros({1}), 0), InternalError);
}

TEST(MeshShapeTest, CoordinatesAndNumbersAgreeForEveryRank) {
  const MeshShape shape{.pipeline = 2, .replicate = 3, .shard = 2, .context = 2, .tensor = 2};
  EXPECT_EQ(shape.ranks(), 48);
  EXPECT_EQ(shape.ToText(), "pipeline 2 x replicate 3 x shard 2 x context 2 x tensor 2");
  EXPECT_EQ(MeshShape().ToText(), "one rank");
  const AxisSet all = {Axis::kPipeline, Axis::kReplicate, Axis::kShard, Axis::kContext,
                       Axis::kTensor};
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    EXPECT_EQ(shape.Index(rank, all), rank);
    EXPECT_EQ(shape.Coordinate(rank, Axis::kTensor), rank % 2);
    EXPECT_EQ(shape.Coordinate(rank, Axis::kPipeline), rank / 24);
    EXPECT_EQ(shape.Index(rank, kRowAxes),
              shape.Coordinate(rank, Axis::kReplicate) * 2 + shape.Coordinate(rank, Axis::kShard));
  }
}

TEST(MeshTest, RowsAreNodesAndColumnsTheirReplicas) {
  RunRanksOverGloo(6, [](Communicator& comm) {
    const Mesh mesh(comm, {.replicate = 2, .shard = 3});
    EXPECT_EQ(mesh.Group(Axis::kShard).rank(), comm.rank() % 3);
    EXPECT_EQ(mesh.Group(Axis::kShard).world(), 3);
    EXPECT_EQ(mesh.Group(Axis::kReplicate).rank(), comm.rank() / 3);
    EXPECT_THAT(AllGatherInt64(mesh.Group(Axis::kReplicate), comm.rank()),
                ElementsAre(comm.rank() % 3, comm.rank() % 3 + 3));
    EXPECT_EQ(&mesh.Group(kRowAxes), &comm);
    EXPECT_EQ(&mesh.Group(kTokenAxes), &comm);
    EXPECT_EQ(mesh.Group(Axis::kPipeline).world(), 1);
    EXPECT_EQ(mesh.row_rank(), comm.rank());
    EXPECT_EQ(mesh.row_ranks(), 6);
  });
}

TEST(MeshTest, GroupsOfAllAxesHoldTheRanksThatDifferInThemAlone) {
  RunRanksOverGloo(8, [](Communicator& comm) {
    const Mesh mesh(comm, {.pipeline = 2, .shard = 2, .context = 2});
    const int rank = comm.rank(), stage = rank / 4 * 4;
    EXPECT_THAT(AllGatherInt64(mesh.Group(Axis::kPipeline), rank),
                ElementsAre(rank % 4, rank % 4 + 4));
    EXPECT_THAT(AllGatherInt64(mesh.Group(Axis::kContext), rank),
                ElementsAre(rank / 2 * 2, rank / 2 * 2 + 1));
    EXPECT_THAT(AllGatherInt64(mesh.Group(kRowAxes), rank),
                ElementsAre(stage + rank % 2, stage + rank % 2 + 2));
    EXPECT_THAT(AllGatherInt64(mesh.Group(kTokenAxes), rank),
                ElementsAre(stage, stage + 1, stage + 2, stage + 3));
    EXPECT_EQ(mesh.row_rank(), rank / 2 % 2);
    EXPECT_EQ(mesh.row_ranks(), 2);
  });
}

TEST(MeshTest, ContextOverNodesHasAGroupInEachAndOneOfEachPlace) {
  RunRanksOverGloo(8, [](Communicator& comm) {
    const Mesh mesh(comm, {.shard = 2, .context = 4, .context_nodes = 2});
    const int rank = comm.rank(), row = rank / 4 * 4;
    EXPECT_THAT(AllGatherInt64(mesh.ContextInNode(), rank),
                ElementsAre(rank / 2 * 2, rank / 2 * 2 + 1));
    EXPECT_THAT(AllGatherInt64(mesh.ContextOverNodes(), rank),
                ElementsAre(row + rank % 2, row + rank % 2 + 2));
    EXPECT_EQ(mesh.Group(Axis::kContext).world(), 4);
  });
  RunRanksOverGloo(2, [](Communicator& comm) {
    const Mesh in_node(comm, {.context = 2});
    EXPECT_EQ(&in_node.ContextInNode(), &in_node.Group(Axis::kContext));
    EXPECT_EQ(in_node.ContextOverNodes().world(), 1);
    const Mesh over_nodes(comm, {.context = 2, .context_nodes = 2});
    EXPECT_EQ(over_nodes.ContextInNode().world(), 1);
    EXPECT_EQ(over_nodes.ContextOverNodes().world(), 2);
    EXPECT_THROW(Mesh(comm, {.context = 2, .context_nodes = 3}), InternalError);
  });
}

TEST(MeshTest, OneRankIsEveryGroupAndOtherNumbersOfRanksAreRefused) {
  const auto comm = MakeLocalCommunicator(at::kCPU);
  const Mesh mesh(*comm, {});
  EXPECT_EQ(&mesh.Group(Axis::kShard), comm.get());
  EXPECT_EQ(&mesh.Group(Axis::kPipeline), comm.get());
  EXPECT_THROW(Mesh(*comm, {.shard = 2}), InternalError);
  EXPECT_THROW(Mesh(*comm, {.shard = 0}), InternalError);
  EXPECT_THROW((void)mesh.Group({Axis::kPipeline, Axis::kTensor}), InternalError);
}

}  // namespace
}  // namespace sft::engine
