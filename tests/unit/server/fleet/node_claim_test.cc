#include "server/fleet/node_claim.h"

#include "server/fleet/describe_node.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

using S = v1::AttemptStatus;

// A worker of node a and one with a copy of its data folder.
class NodeClaimTest : public FleetTest {
 protected:
  static v1::Register WorkerWith(const std::string& incarnation, int inode) {
    v1::Register message = RegisterOf("a", "CPU", 1, incarnation);
    message.set_data_dir_id("folder-1");
    v1::DataDirPlace& place = *message.mutable_facts()->mutable_data_dir();
    place.set_machine("m1");
    place.set_device(7);
    place.set_inode(inode);
    place.set_path("/data/" + std::to_string(inode));
    return message;
  }
  static v1::Register OldWorker(const std::string& incarnation) {
    v1::Register message = WorkerWith(incarnation, 1);
    message.clear_facts();
    return message;
  }
  absl::Status Try(const v1::Register& message,
                   std::shared_ptr<FakeWorker> worker = std::make_shared<FakeWorker>()) {
    return registry_->Connect(message, std::move(worker));
  }
  void PassSilence() {
    clock_.Advance(registry_->options().suspect_after + std::chrono::seconds(1));
  }
  int Warnings(const std::string& job) {
    int count = 0;
    const auto events = jobs_->Events("projects/default/jobs/" + job, 0, 100).value();
    for (const v1::JobEvent& event : events) {
      count += event.type() == "warning" && event.message().find("copy") != std::string::npos;
    }
    return count;
  }
  std::string RivalShown() {
    std::string rival;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(const NodeContext context,
                                           ReadNodeContext(db, *registry_));
                      SFT_ASSIGN_OR_RETURN(const NodeRecord node, store::GetNode(db, "a"));
                      SFT_ASSIGN_OR_RETURN(const v1::Node view,
                                           DescribeNode(db, node, context, *registry_));
                      rival = view.rival();
                      return absl::OkStatus();
                    })
                    .ok());
    return rival;
  }
};

TEST_F(NodeClaimTest, AWorkerWithACopiedFolderIsRefusedAndBothAreTold) {
  const auto worker = std::make_shared<FakeWorker>();
  ASSERT_TRUE(Try(WorkerWith("life-1", 1), worker).ok());
  const std::string job = Submit("CPU", 1);
  Tick();
  Report("a", worker, Uid(job), S::RUNNING);
  for (int i = 0; i < 3; ++i) {
    const absl::Status refused = Try(WorkerWith("copy", 2));
    EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
    for (const char* part : {"is a copy", "life-1", "/data/1", "--data-dir", "--node"}) {
      EXPECT_NE(Message(refused).find(part), std::string_view::npos) << part << ": " << refused;
    }
    EXPECT_FALSE(registry_->MakeWelcome(refused).replaced())
        << "it may come when the other is gone";
  }
  EXPECT_TRUE(worker->closed.ok());
  ASSERT_EQ(worker->notices.size(), 1u) << "told once";
  EXPECT_NE(worker->notices[0].find("/data/2"), std::string::npos) << worker->notices[0];
  EXPECT_EQ(RivalShown(), worker->notices[0]);
  EXPECT_EQ(Warnings(job), 1);
  EXPECT_EQ(State(job), v1::Job::RUNNING);
  clock_.Advance(std::chrono::hours(2));
  EXPECT_EQ(RivalShown(), "");
}

TEST_F(NodeClaimTest, ARestartedOrReconnectingWorkerIsAccepted) {
  for (int life = 1; life <= 40; ++life) {
    const v1::Register message = WorkerWith("life-" + std::to_string(life), 1);
    for (int dial = 0; dial < 3; ++dial) ASSERT_TRUE(Try(message).ok()) << life;
  }
  Halt();
  Boot();
  EXPECT_TRUE(Try(WorkerWith("life-40", 1)).ok());
  EXPECT_TRUE(Try(WorkerWith("life-41", 1)).ok());
  EXPECT_EQ(RivalShown(), "");
}

// st_dev and machine-id may differ after each boot, mount or start of a container.
TEST_F(NodeClaimTest, AChangedDiskOrMachineNumberIsAcceptedButACopyIsNot) {
  ASSERT_TRUE(Try(WorkerWith("life-1", 1)).ok());
  const auto with = [](const std::string& incarnation, const auto& change) {
    v1::Register message = WorkerWith(incarnation, 1);
    change(message, *message.mutable_facts()->mutable_data_dir());
    return message;
  };
  using Place = v1::DataDirPlace;
  const auto copies = {
      with("other folder", [](v1::Register&, Place& place) { place.set_inode(2); }),
      with("other disk and path",
           [](v1::Register&, Place& place) {
             place.set_device(8);
             place.set_path("/copy/1");
           }),
      with("cloned volume",
           [](v1::Register& message, Place& place) {
             place.set_device(8);
             message.set_hostname("pod-2");
           }),
      with("other machine",
           [](v1::Register&, Place& place) {
             place.set_device(8);
             place.set_machine("m2");
           }),
  };
  for (const v1::Register& copy : copies) {
    const absl::Status refused = Try(copy);
    EXPECT_TRUE(absl::IsAlreadyExists(refused)) << copy.incarnation() << ": " << refused;
    EXPECT_NE(Message(refused).find("only has to wait"), std::string_view::npos) << refused;
  }
  EXPECT_TRUE(Try(with("booted", [](v1::Register&, Place& place) { place.set_device(9); })).ok());
  EXPECT_TRUE(Try(with("restarted container", [](v1::Register&, Place& place) {
                place.set_device(9);
                place.set_machine("m3");
              })).ok());
  // A worker of which everything changed is accepted after one period of silence.
  PassSilence();
  EXPECT_TRUE(Try(*std::prev(copies.end())).ok());
}

TEST_F(NodeClaimTest, AReplacedIncarnationIsRefusedForGood) {
  ASSERT_TRUE(Try(WorkerWith("copy", 1)).ok());
  PassSilence();
  const auto winner = std::make_shared<FakeWorker>();
  ASSERT_TRUE(Try(WorkerWith("life-2", 2), winner).ok()) << "the other was silent";
  const auto check = [&] {
    const absl::Status refused = Try(WorkerWith("copy", 1));
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_TRUE(registry_->MakeWelcome(refused).replaced());
    for (const char* part : {"taken over", "life-2", "host-of-a", "/data/2", "2023-", "--node"}) {
      EXPECT_NE(Message(refused).find(part), std::string_view::npos) << part << ": " << refused;
    }
  };
  check();
  EXPECT_EQ(winner->notices.size(), 1u);
  EXPECT_TRUE(winner->closed.ok());
  PassSilence();
  check();
  Halt();
  Boot();
  check();
  clock_.Advance(std::chrono::hours(24 * 30));
  check();
  EXPECT_TRUE(Try(WorkerWith("life-2", 2)).ok());
}

// The two replace each other once, not for ever.
TEST_F(NodeClaimTest, TheFirstOfTwoOlderWorkersIsRefusedForGood) {
  ASSERT_TRUE(Try(OldWorker("copy")).ok());
  const auto winner = std::make_shared<FakeWorker>();
  ASSERT_TRUE(Try(OldWorker("life-2"), winner).ok());
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(WasReplaced(Try(OldWorker("copy"))));
    EXPECT_TRUE(Observe("a", winner, {}).ok());
  }
  EXPECT_TRUE(winner->closed.ok());
}

TEST_F(NodeClaimTest, ANodeThatWasRemovedBeginsAnew) {
  ASSERT_TRUE(Try(WorkerWith("life-1", 1)).ok());
  ASSERT_TRUE(Try(WorkerWith("life-2", 1)).ok());
  ASSERT_TRUE(store_->Write([](Database& db) { return store::RemoveNode(db, "a"); }).ok());
  EXPECT_TRUE(Try(WorkerWith("life-1", 1)).ok());
}

TEST_F(NodeClaimTest, OnlyTheRegisteredIncarnationMayCall) {
  EXPECT_TRUE(absl::IsUnavailable(registry_->CheckIncarnation("a", "life-1")));
  ASSERT_TRUE(Try(WorkerWith("life-1", 1)).ok());
  EXPECT_TRUE(registry_->CheckIncarnation("a", "life-1").ok());
  ASSERT_FALSE(Try(WorkerWith("copy", 2)).ok());
  EXPECT_TRUE(absl::IsUnavailable(registry_->CheckIncarnation("a", "copy")));
  ASSERT_TRUE(Try(WorkerWith("life-2", 1)).ok());
  EXPECT_TRUE(absl::IsUnavailable(registry_->CheckIncarnation("a", "life-1")));
  EXPECT_TRUE(registry_->CheckIncarnation("a", "life-2").ok());
}

}  // namespace
}  // namespace sft::server
