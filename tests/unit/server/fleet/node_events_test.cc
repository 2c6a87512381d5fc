// What nodes do is in the feed of events, and what they say of their GPUs in those GPUs' history.

#include <gmock/gmock.h>

#include "server/fleet/node_holds.h"
#include "server/store/feed.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NodeEventsTest : public FleetTest {
 protected:
  // "nodes/a up: ..." of each event that was not there the last time.
  std::vector<std::string> News() {
    std::vector<std::string> texts;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      store::FeedFilter filter;
                      filter.after = read_;
                      SFT_ASSIGN_OR_RETURN(const store::FeedPage page, store::ReadFeed(db, filter));
                      read_ = page.last;
                      for (const store::FeedEvent& event : page.events) {
                        texts.push_back(event.subject + " " + event.type + ": " + event.message);
                      }
                      return absl::OkStatus();
                    })
                    .ok());
    return texts;
  }

  int64_t read_ = 0;
};

TEST_F(NodeEventsTest, ALifeSilenceAndItsEndAreTold) {
  auto worker = Join("a", "H100", 4);
  EXPECT_THAT(News(), ElementsAre("nodes/a registered: 4 x H100, sft-worker " +
                                  std::string(kVersion) + " on host host-of-a"));
  worker = Join("a", "H100", 4);
  EXPECT_THAT(News(), ElementsAre()) << "the same life dials again";
  clock_.Advance(seconds(60));
  Tick();
  EXPECT_THAT(News(), ElementsAre(HasSubstr("nodes/a suspect: silent since ")));
  Tick();
  EXPECT_THAT(News(), ElementsAre());
  worker = Join("a", "H100", 4);
  EXPECT_THAT(News(), ElementsAre("nodes/a up: its worker has connected again"));
  clock_.Advance(seconds(60));
  Tick();
  ASSERT_TRUE(Observe("a", worker, {}).ok());
  Tick();
  EXPECT_THAT(News(), ElementsAre(HasSubstr("suspect"), HasSubstr("nodes/a up: ")));
  Join("a", "H100", 4, "life-2");
  EXPECT_THAT(News(), ElementsAre(HasSubstr("nodes/a registered")));
}

TEST_F(NodeEventsTest, WhatOperatorsDoIsToldOnce) {
  const auto worker = Join("a", "H100", 1);
  News();
  const auto write = [&](const Store::Function& change) {
    ASSERT_TRUE(store_->Write(change).ok());
  };
  store::NodeHold hold{.node = "a", .reason = "fan", .who = "ops"};
  write([&](Database& db) { return HoldNode(db, hold); });
  hold.mode = store::HoldMode::kDrain;
  hold.reason.clear();
  write([&](Database& db) { return HoldNode(db, hold); });
  for (int i = 0; i < 2; ++i) {
    write([&](Database& db) { return ReleaseNode(db, "a", "ops", 1); });
  }
  registry_->Disconnect("a", worker.get());
  for (int i = 0; i < 2; ++i) {
    write([&](Database& db) {
      return RemoveNode(db, "a", registry_->Get("a"), /*force=*/false, "ops", 1);
    });
  }
  EXPECT_THAT(News(), ElementsAre("nodes/a cordoned: by ops: fan", "nodes/a drained: by ops",
                                  "nodes/a released: by ops", "nodes/a removed: by ops"));
}

TEST_F(NodeEventsTest, ASlotThatFailsAndComesBackIsTold) {
  const auto worker = Join("a", "H100", 2);
  News();
  v1::Observed observed;
  *observed.mutable_slots() = RegisterOf("a", "H100", 2).slots();
  observed.mutable_slots(1)->set_healthy(false);
  observed.mutable_slots(1)->set_health_reason("fell off the bus");
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(registry_->Observe("a", worker.get(), observed).ok());
  observed.mutable_slots(1)->set_healthy(true);
  observed.mutable_slots(1)->clear_health_reason();
  ASSERT_TRUE(registry_->Observe("a", worker.get(), observed).ok());
  EXPECT_THAT(News(), ElementsAre("nodes/a slots: slot 1 (H100) is not healthy: fell off the bus",
                                  "nodes/a slots: slot 1 (H100) is healthy again"));
}

TEST_F(NodeEventsTest, TheUseOfGpusIsKeptAndNoNewsToTheStore) {
  GpuHistory history(dir_ + "/gpu-use");
  WorkerRegistry registry(
      WorkerRegistry::Options(), *store_, clock_, hub_, [] {}, &history);
  const auto worker = std::make_shared<FakeWorker>();
  ASSERT_TRUE(registry.Connect(RegisterOf("a", "H100", 2), worker).ok());
  v1::Observed observed;
  *observed.mutable_slots() = RegisterOf("a", "H100", 2).slots();
  ASSERT_TRUE(registry.Observe("a", worker.get(), observed).ok());
  const int64_t begin = UnixMicros(clock_.Wall());
  const int64_t commits = store_->commits();
  v1::Slot& slot = *observed.mutable_slots(1);
  slot.set_memory_used_bytes(70);
  slot.set_utilization_percent(90);
  slot.set_power_watts(650.5F);
  slot.set_temperature_celsius(61);
  ASSERT_TRUE(registry.Observe("a", worker.get(), observed).ok());
  EXPECT_EQ(store_->commits(), commits);
  slot.set_power_watts(-1);
  clock_.Advance(seconds(20));
  ASSERT_TRUE(registry.Observe("a", worker.get(), observed).ok());
  EXPECT_EQ(registry.refusals().counts().at("a"), 1) << "no GPU takes that";
  const auto gpus = history.Read("a", begin, UnixMicros(clock_.Wall()), GpuHistory::kFineUs);
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ASSERT_EQ(gpus->size(), 1u) << "slot 0 reports no use";
  ASSERT_EQ(gpus->at(1).size(), 1u);
  EXPECT_EQ(gpus->at(1)[0].use.memory_bytes, 70);
  EXPECT_EQ(gpus->at(1)[0].use.power_watts, 650.5F);
  EXPECT_EQ(gpus->at(1)[0].use.temperature_celsius, 61);
}

}  // namespace
}  // namespace sft::server
