#include "server/core/generation.h"

#include "server/store/generation.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

class GenerationTest : public FleetTest {
 protected:
  std::unique_ptr<Generation> Load(std::optional<tls::Identity> authority = std::nullopt) {
    return Generation::Load(*store_, std::move(authority)).value();
  }
  int64_t Raise(int64_t above = 0) {
    int64_t number = 0;
    const absl::Status raised = store_->Write([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(number, store::RaiseGeneration(db, UnixMicros(clock_.Wall()), above));
      return absl::OkStatus();
    });
    EXPECT_TRUE(raised.ok()) << raised;
    return number;
  }
  tls::Identity Authority() const {
    return tls::MakeAuthority("fleet", {clock_.Wall(), clock_.Wall() + std::chrono::hours(24)})
        .value();
  }
};

TEST_F(GenerationTest, ItBeginsAtOneAndEachRiseIsAboveAllThatWasKnown) {
  EXPECT_EQ(Load()->number(), kFirstGeneration);
  const int64_t first = Raise();
  EXPECT_GE(first, UnixMicros(clock_.Wall()) / 1'000'000) << "two restores of one backup differ";
  EXPECT_EQ(Raise(), first + 1) << "within one second";
  EXPECT_EQ(Raise(first + 1000), first + 1001);
  EXPECT_EQ(Load()->number(), first + 1001);
}

TEST_F(GenerationTest, AWorkerOfANewerServerEndsThisOneForGood) {
  const auto generation = Load();
  EXPECT_TRUE(generation->Meet("a", 1, "").ok());
  EXPECT_TRUE(generation->status().ok());
  const absl::Status met = generation->Meet("a", 7, "");
  EXPECT_TRUE(absl::IsFailedPrecondition(met)) << met;
  EXPECT_NE(Message(met).find("generation 7"), std::string::npos) << met;
  EXPECT_EQ(generation->status(), met);
  EXPECT_FALSE(generation->Meet("b", 7, "").ok()) << "whoever comes next";
  EXPECT_TRUE(absl::IsFailedPrecondition(Generation::Load(*store_, std::nullopt).status()))
      << "it is in the database";
  EXPECT_GT(Raise(), 7);
  EXPECT_TRUE(Generation::Load(*store_, std::nullopt).ok()) << "somebody has said that it serves";
}

TEST_F(GenerationTest, WithKeysOnlyTheFleetsAuthorityProvesANumber) {
  const tls::Identity authority = Authority();
  const auto older = Load(authority);
  Raise();
  const auto newer = Load(authority);
  EXPECT_TRUE(older->Meet("a", newer->number(), "").ok()) << "no proof";
  EXPECT_TRUE(older->Meet("a", newer->number() + 1, newer->proof()).ok()) << "of another number";
  EXPECT_TRUE(older->Meet("a", newer->number(), Load(Authority())->proof()).ok())
      << "of another fleet";
  EXPECT_TRUE(older->status().ok());
  EXPECT_FALSE(older->Meet("a", newer->number(), newer->proof()).ok());
  EXPECT_FALSE(older->status().ok());
}

TEST_F(GenerationTest, ANumberThatNoServerCanHaveIsRefusedAndBlocksNoLaterServer) {
  const auto generation = Load();
  for (const int64_t absurd : {INT64_MAX, kLastGeneration + 1}) {
    EXPECT_TRUE(absl::IsInvalidArgument(generation->Meet("a", absurd, ""))) << absurd;
    EXPECT_TRUE(absl::IsInvalidArgument(generation->Retire(absurd, "sft-b:7070"))) << absurd;
  }
  EXPECT_TRUE(generation->status().ok());
  EXPECT_TRUE(generation->Meet("a", 1, "").ok());
  EXPECT_LT(Raise(), kLastGeneration);
  const auto stored = [&](const char* column, int64_t number) {
    const absl::Status written = store_->Write([&](Database& db) -> absl::Status {
      const std::string sql = std::string("UPDATE server_generation SET ") + column + " = ?";
      SFT_ASSIGN_OR_RETURN(Statement set, db.Prepare(sql.c_str()));
      return set.Bind(number).Run();
    });
    EXPECT_TRUE(written.ok()) << written;
    return Generation::Load(*store_, std::nullopt).status();
  };
  // What a damaged database says is told, and the next life of it has a number all the same.
  for (const char* column : {"number", "replaced_by"}) {
    for (const int64_t absurd : {INT64_MAX, kLastGeneration + 1, int64_t{-1}}) {
      const absl::Status refused = stored(column, absurd);
      EXPECT_TRUE(absl::IsDataLoss(refused)) << column << " " << absurd << refused;
      EXPECT_NE(Message(refused).find("sft-server takeover"), std::string::npos) << refused;
      EXPECT_LT(Raise(), UnixMicros(clock_.Wall()) / 1'000'000 + 100);
      EXPECT_TRUE(Generation::Load(*store_, std::nullopt).ok());
    }
  }
  EXPECT_TRUE(absl::IsOutOfRange(store_->Write([&](Database& db) {
    return store::RaiseGeneration(db, UnixMicros(clock_.Wall()), INT64_MAX).status();
  })));
}

TEST_F(GenerationTest, TheRegistryTellsItAndTakesNoWorkerOfANewerServer) {
  const auto generation = Load();
  WorkerRegistry registry(
      {}, *store_, clock_, hub_, [] {}, nullptr, generation.get());
  EXPECT_EQ(registry.MakeWelcome(absl::OkStatus()).generation(), 1);
  v1::Register message = RegisterOf("a", "CPU", 1);
  message.set_generation(1);
  EXPECT_TRUE(registry.Connect(message, std::make_shared<FakeWorker>()).ok());
  message = RegisterOf("b", "CPU", 1);
  message.set_generation(2);
  const absl::Status refused = registry.Connect(message, std::make_shared<FakeWorker>());
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_FALSE(registry.IsConnected("b"));
  EXPECT_NE(registry.MakeWelcome(refused).refused().find("replaced"), std::string::npos);
  EXPECT_FALSE(generation->status().ok());
}

}  // namespace
}  // namespace sft::server
