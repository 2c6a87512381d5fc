#include <gmock/gmock.h>

#include "server/core/node_holds.h"
#include "server/store/node_holds.h"
#include "tests/unit/server/core/fleet_fixture.h"

namespace sft::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NodeRemovalTest : public FleetTest {
 protected:
  absl::Status Remove(const std::string& node) {
    return store_->Write([&](Database& db) { return RemoveNode(db, node, registry_->Get(node)); });
  }
  // Names of the nodes there are, which all three ways to ask agree about.
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

TEST_F(NodeRemovalTest, ANodeGoesWithItsHoldAndComesBackWithItsWorker) {
  const auto a = Join("a", "H100", 2), b = Join("b", "H100", 2);
  const store::NodeHold hold{.node = "a", .mode = store::HoldMode::kDrain, .who = "root"};
  ASSERT_TRUE(store_->Write([&](Database& db) { return HoldNode(db, hold); }).ok());
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
    return absl::OkStatus();
  });
  EXPECT_TRUE(unheld.ok());
  // Its slots are there again, too: both nodes are needed.
  const std::string job = Submit("H100", 2, 2);
  Join("b", "H100", 2);
  Tick();
  EXPECT_EQ(State(job), v1::Job::PREPARING);
}

TEST_F(NodeRemovalTest, JobsThatAreNotOverThereAreNamed) {
  const auto a = Join("a", "H100", 1);
  const std::string job = Submit("H100", 1);
  Tick();
  Report("a", a, Uid(job), v1::AttemptStatus::RUNNING);
  registry_->Disconnect("a", a.get());
  const absl::Status running = Remove("a");
  EXPECT_TRUE(absl::IsFailedPrecondition(running));
  EXPECT_THAT(Message(running), HasSubstr(job + " on node a may still run there"));
  EXPECT_THAT(Nodes(), ElementsAre("a"));
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

TEST_F(NodeRemovalTest, AMistypedNameIsToldTheNodesThereAre) {
  Join("a", "H100", 1);
  const absl::Status status = Remove("c");
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(Message(status), AllOf(HasSubstr("no node \"c\""), HasSubstr("there is: a")));
}

}  // namespace
}  // namespace sft::server
