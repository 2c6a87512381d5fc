#include <gmock/gmock.h>

#include "server/fleet/node_holds.h"
#include "server/store/node_holds.h"
#include "tests/unit/server/gangs/life_fixture.h"

namespace sft::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NodeRemovalTest : public LifeTest {
 protected:
  absl::Status Remove(const std::string& node, bool force = false) {
    return store_->Write([&](Database& db) {
      return RemoveNode(db, node, registry_->Get(node), force, "ops", registry_->now_us());
    });
  }
  // Names of the existing nodes, on which all three calls agree.
  std::vector<std::string> Nodes() {
    std::vector<std::string> names;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(const auto all, store::AllNodes(db));
                      SFT_ASSIGN_OR_RETURN(const auto listed, store::ListNodes(db, "", 100));
                      EXPECT_EQ(all.size(), listed.size());
                      for (const NodeRecord& node : all) {
                        names.push_back(node.name);
                        SFT_ASSIGN_OR_RETURN(const bool known, store::HasNode(db, node.name));
                        EXPECT_TRUE(known) << node.name;
                      }
                      return absl::OkStatus();
                    })
                    .ok());
    return names;
  }
};

TEST_F(NodeRemovalTest, ARemovedNodeLosesItsHoldAndFaultsAndReturnsWithItsWorker) {
  const auto a = Join("a", "H100", 2), b = Join("b", "H100", 2);
  const store::NodeHold hold{.node = "a", .mode = store::HoldMode::kDrain, .who = "root"};
  const NodeFault fault{.node = "a", .time_us = 1, .job_id = "job-x", .code = "gpu_lost"};
  ASSERT_TRUE(store_
                  ->Write([&](Database& db) -> absl::Status {
                    SFT_RETURN_IF_ERROR(store::AddNodeFault(db, fault));
                    return HoldNode(db, hold);
                  })
                  .ok());
  const absl::Status connected = Remove("a");
  EXPECT_TRUE(absl::IsFailedPrecondition(connected));
  EXPECT_THAT(Message(connected), HasSubstr("node a is connected: end its sft-worker first"));
  EXPECT_THAT(Nodes(), ElementsAre("a", "b"));

  registry_->Disconnect("a", a.get());
  EXPECT_TRUE(Remove("a").ok());
  EXPECT_THAT(Nodes(), ElementsAre("b"));
  EXPECT_TRUE(Remove("a").ok()) << "a repeat is fine";
  EXPECT_TRUE(absl::IsNotFound(store_->Write([&](Database& db) { return HoldNode(db, hold); })));
  Tick();
  Halt();
  Boot();
  Tick();
  EXPECT_THAT(Nodes(), ElementsAre("b"));

  Join("a", "H100", 2, "life-2");
  EXPECT_THAT(Nodes(), ElementsAre("a", "b"));
  const absl::Status unheld = store_->Read([](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const auto holds, store::Holds(db));
    EXPECT_THAT(holds, IsEmpty());
    SFT_ASSIGN_OR_RETURN(const auto faults, store::NodeFaults(db, 0));
    EXPECT_THAT(faults, IsEmpty()) << "another machine may have the name";
    return absl::OkStatus();
  });
  EXPECT_TRUE(unheld.ok());
  // Its slots are back too: the job needs both nodes.
  const std::string job = Submit("H100", 2, 2);
  Join("b", "H100", 2);
  Tick();
  EXPECT_EQ(State(job), v1::Job::PREPARING);
}

TEST_F(NodeRemovalTest, JobsThatMayStillRunThereAreNamed) {
  const auto a = Join("a", "H100", 1);
  const std::string job = Submit("H100", 1);
  Tick();
  Say("a", a, job, S::RUNNING);
  registry_->Disconnect("a", a.get());
  const absl::Status running = Remove("a");
  EXPECT_TRUE(absl::IsFailedPrecondition(running));
  EXPECT_THAT(Message(running), HasSubstr(job + " may still run on node a"));
  EXPECT_THAT(Nodes(), ElementsAre("a"));
}

// The attempt keeps the slots of a node that was given up held, and that node never comes back to
// free them.
TEST_F(NodeRemovalTest, OnceItsJobWasPlacedElsewhereTheNodeCanGo) {
  const auto a = Join("a", "CPU", 1);
  const std::string job = SubmitWith(R"({"compute":{"unreachable_after":"2m"}})");
  Tick();
  const std::string first = Uid(job);
  Say("a", a, job, S::RUNNING);
  registry_->Disconnect("a", a.get());
  const auto b = Join("b", "CPU", 1);
  PassSilently(seconds(200), "b", b);
  ASSERT_EQ(Attempt(job), 2);
  EXPECT_EQ(HeldSlots(), 2u);
  EXPECT_TRUE(Remove("a").ok());
  EXPECT_THAT(Nodes(), ElementsAre("b"));
  // If the node comes back after all, the attempts it finds are ended as usual.
  const auto again = Join("a", "CPU", 1, "life-2");
  ASSERT_TRUE(Observe("a", again, {StatusOf(first, S::RUNNING)}).ok());
  Tick();
  ASSERT_NE(again->Wanted(first), nullptr);
  EXPECT_EQ(again->Wanted(first)->intent(), D::FORGET);
  ASSERT_TRUE(Observe("a", again, {}).ok());
  EXPECT_EQ(HeldSlots(), 1u);
}

TEST_F(NodeRemovalTest, ByForceItsJobsArePlacedAgainThoughTheyWantedToWait) {
  const auto a = Join("a", "CPU", 1);
  const std::string job =
      SubmitWith(R"({"compute":{"unreachable_after":"1h","on_unreachable":"wait"}})");
  Tick();
  Say("a", a, job, S::RUNNING);
  ASSERT_TRUE(Commit(job, 10));
  registry_->Disconnect("a", a.get());
  const auto b = Join("b", "CPU", 1);
  PassSilently(minutes(5), "b", b);
  EXPECT_EQ(Attempt(job), 1);
  EXPECT_TRUE(Remove("a", /*force=*/true).ok());
  PassSilently(seconds(10), "b", b);
  EXPECT_EQ(Attempt(job), 2);
  EXPECT_EQ(Job(job).attempts(0).verdict().code(), "node_unreachable");
  EXPECT_THAT(Job(job).attempts(1).nodes(), ElementsAre("b"));
}

TEST_F(NodeRemovalTest, NothingIsPlacedOnANodeRemovedDuringTheDecision) {
  const auto a = Join("a", "CPU", 1);
  registry_->Disconnect("a", a.get());
  const std::string job = Submit("CPU", 1);
  ASSERT_TRUE(Remove("a").ok());
  Tick();
  EXPECT_EQ(State(job), v1::Job::PENDING);
}

TEST_F(NodeRemovalTest, HistoryKeepsItsName) {
  const auto a = Join("a", "H100", 1);
  const std::string job = Submit("H100", 1);
  Tick();
  const std::string uid = Uid(job);
  Report("a", a, uid, v1::AttemptStatus::DONE, "succeeded");
  ASSERT_TRUE(Observe("a", a, {}).ok());
  registry_->Disconnect("a", a.get());
  EXPECT_TRUE(Remove("a").ok());
  EXPECT_EQ(State(job), v1::Job::SUCCEEDED);
  EXPECT_THAT(Job(job).attempts(0).nodes(), ElementsAre("a"));
}

TEST_F(NodeRemovalTest, OnlyANodeThatHistoryDoesNotNameIsForgottenWithAge) {
  const auto drop = [&] {
    std::vector<std::string> names;
    EXPECT_TRUE(store_
                    ->Write([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(
                          names, store::DropOldNodes(db, UnixMicros(clock_.Wall()) - 1, 100));
                      return absl::OkStatus();
                    })
                    .ok());
    return names;
  };
  const auto a = Join("a", "H100", 1);
  const std::string job = Submit("H100", 1);
  Tick();
  Report("a", a, Uid(job), v1::AttemptStatus::DONE, "succeeded");
  ASSERT_TRUE(Observe("a", a, {}).ok());
  const auto b = Join("b", "H100", 1), c = Join("c", "H100", 1);
  ModelRecord model;
  model.node = "b", model.id = "m", model.path = "/models/m";
  ASSERT_TRUE(store_->Write([&](Database& db) { return store::PutModels(db, "b", {model}); }).ok());
  for (const auto& [node, worker] : {std::pair("a", a), std::pair("b", b)}) {
    registry_->Disconnect(node, worker.get());
    ASSERT_TRUE(Remove(node).ok());
  }
  clock_.Advance(minutes(1));
  EXPECT_THAT(drop(), ElementsAre("b"));
  EXPECT_THAT(drop(), IsEmpty());
  EXPECT_THAT(Nodes(), ElementsAre("c")) << "one that is there stays";
  EXPECT_TRUE(absl::IsNotFound(
      store_->Read([](Database& db) { return store::GetNode(db, "b").status(); })));
  EXPECT_THAT(Job(job).attempts(0).nodes(), ElementsAre("a"));
  Join("b", "H100", 1, "life-2");
  EXPECT_THAT(Nodes(), ElementsAre("b", "c"));
}

// Names of Slurm's nodes have their job in them, and never come again.
TEST_F(NodeRemovalTest, AHoldOfANodeThatLeftIsForgottenWithAge) {
  Join("a", "H100", 1);
  const int64_t left_us = UnixMicros(clock_.Wall());
  const auto held = [&](int64_t before_us) {
    size_t count = 0;
    EXPECT_TRUE(store_
                    ->Write([&](Database& db) -> absl::Status {
                      SFT_RETURN_IF_ERROR(store::DropOldNodes(db, before_us, 100).status());
                      SFT_ASSIGN_OR_RETURN(const auto holds, store::Holds(db));
                      count = holds.size();
                      return absl::OkStatus();
                    })
                    .ok());
    return count;
  };
  const auto hold = [&](Database& db) {
    return HoldNode(db, {.node = "a", .mode = store::HoldMode::kDrain, .who = "ann"});
  };
  ASSERT_TRUE(store_->Write(hold).ok());
  EXPECT_EQ(held(left_us + 1), 1u) << "it is there";
  ASSERT_TRUE(store_->Write([&](Database& db) { return store::LetNodeGo(db, "a", left_us); }).ok());
  EXPECT_EQ(held(left_us), 1u) << "it may come again";
  EXPECT_EQ(held(left_us + 1), 0u);
}

// Otherwise each deletion would read all of history.
TEST_F(NodeRemovalTest, HistoryOfANodeIsFoundByAnIndex) {
  const absl::Status read = store_->Read([](Database& db) -> absl::Status {
    for (const char* sql : {"EXPLAIN QUERY PLAN SELECT 1 FROM attempt_nodes WHERE node = 'a'",
                            "EXPLAIN QUERY PLAN SELECT 1 FROM allocations WHERE node = 'a'"}) {
      SFT_ASSIGN_OR_RETURN(Statement plan, db.Prepare(sql));
      SFT_RETURN_IF_ERROR(plan.Step().status());
      EXPECT_THAT(plan.Text(3), HasSubstr("USING COVERING INDEX"));
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(read.ok()) << read;
}

TEST_F(NodeRemovalTest, AMistypedNameListsTheExistingNodes) {
  Join("a", "H100", 1);
  const absl::Status status = Remove("c");
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(Message(status), AllOf(HasSubstr("no node \"c\""), HasSubstr("there is: a")));
}

}  // namespace
}  // namespace sft::server
