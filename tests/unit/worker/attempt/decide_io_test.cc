// What the io thread of an attempt does next.

#include <gtest/gtest.h>

#include "worker/attempt/decide.h"

namespace sft::worker {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using Status = v1::AttemptStatus;

constexpr MonoTime kIoNow{hours(100)};

// One piece of the io thread's work.
struct Piece {
  IoView view;
  IoMemory memory;

  explicit Piece(AttemptState state) {
    view.state = state;
    view.now = kIoNow;
    view.checkpoints_idle = true;
  }
  IoStep Decide() const { return DecideIo(view, memory); }
  IoStep After(const IoStep& step, const absl::Status& result = absl::OkStatus()) {
    Note(step, result, view, memory);
    return Decide();
  }
  IoStep After(IoDo what, const absl::Status& result = absl::OkStatus()) {
    return After(IoStep{.what = what, .then = std::nullopt}, result);
  }
  // What was shipped to the end.
  Piece& Shipped() {
    memory.complete = true;
    After(IoDo::kShipRest);
    return *this;
  }
};

TEST(DecideIoTest, StagingLeadsToReady) {
  Piece piece(Status::STAGING);
  EXPECT_EQ(piece.Decide().what, IoDo::kStage);
  EXPECT_EQ(piece.After(IoDo::kStage).what, IoDo::kFindTorch);
  EXPECT_EQ(piece.After(IoDo::kFindTorch).what, IoDo::kReady);
  EXPECT_EQ(piece.Decide().then, Nanos(hours(1)));
}

TEST(DecideIoTest, WhatStagingSaysDecidesHowItEnds) {
  const auto after = [](const absl::Status& staged, const Wish& wish = {}) {
    Piece piece(Status::STAGING);
    Note(IoStep{.what = IoDo::kStage, .then = std::nullopt}, staged, piece.view, piece.memory);
    piece.view.wish = wish;
    return piece.Decide();
  };
  const absl::Status broken = absl::UnavailableError("broke");
  EXPECT_EQ(after(broken).what, IoDo::kTryAgain);
  EXPECT_EQ(after(absl::DeadlineExceededError("")).what, IoDo::kTryAgain);
  for (const absl::Status& last : {absl::InvalidArgumentError(""), absl::NotFoundError(""),
                                   absl::DataLossError(""), absl::InternalError("")}) {
    EXPECT_EQ(after(last).what, IoDo::kConclude) << last;
    EXPECT_EQ(after(last).end, AttemptEnd::kStagingFailed) << last;
  }
  Wish stop;
  stop.stop = true;
  Wish interrupted;
  interrupted.interrupted = true;
  for (const absl::Status& any : {absl::OkStatus(), broken, absl::AbortedError("")}) {
    EXPECT_EQ(after(any, stop).end, AttemptEnd::kStopped) << any;
    EXPECT_EQ(after(any, stop).what, IoDo::kConclude) << any;
    EXPECT_EQ(after(any, interrupted).what, IoDo::kWait) << "its next life stages it: " << any;
  }
}

TEST(DecideIoTest, WithoutTorchItEndsBeforeAnythingStarts) {
  Piece piece(Status::STAGING);
  piece.After(IoDo::kStage);
  const IoStep step = piece.After(IoDo::kFindTorch, absl::NotFoundError(""));
  EXPECT_EQ(step.what, IoDo::kConclude);
  EXPECT_EQ(step.end, AttemptEnd::kNoTorch);
}

// Fails until something else than another try comes; how often it failed.
int FailUntil(Piece& piece, IoDo what, const absl::Status& why, IoStep& last, int limit = 1000) {
  for (int failures = 1; failures <= limit; ++failures) {
    piece.memory.BeginPiece();
    if (what == IoDo::kDeliver) piece.Shipped();
    EXPECT_EQ(piece.Decide().what, what);
    last = piece.After(what, why);
    if (last.what != IoDo::kTryAgain) return failures;
    last = piece.After(last);
    if (last.what != IoDo::kWait) return failures;
    EXPECT_GT(*last.then, Nanos(0));
    piece.memory.BeginPiece();
    EXPECT_EQ(piece.Decide().what, IoDo::kWait) << "woken early it waits on";
    piece.view.now += minutes(1);
  }
  return limit;
}

TEST(DecideIoTest, WhatFailsTooOftenAndTooLongIsGivenUp) {
  const absl::Status broken = absl::UnavailableError("broke");
  IoStep last;
  Piece staging(Status::STAGING);
  EXPECT_EQ(FailUntil(staging, IoDo::kStage, broken, last), 16) << "10 tries and 15 minutes";
  EXPECT_EQ(last.end, AttemptEnd::kStagingGivenUp);
  Piece rest(Status::FINISHING);
  EXPECT_EQ(FailUntil(rest, IoDo::kShipRest, broken, last), 61) << "20 tries and an hour";
  EXPECT_EQ(last.what, IoDo::kLeaveOut);
  EXPECT_EQ(last.then, Nanos(0));
  Piece artifact(Status::FINISHING);
  artifact.view.delivers = true;
  EXPECT_EQ(FailUntil(artifact, IoDo::kDeliver, broken, last), 362)
      << "20 tries and six hours, and then once more";
  EXPECT_EQ(last.what, IoDo::kLoseArtifact);
  EXPECT_EQ(last.end, AttemptEnd::kArtifactLost);
  Piece live(Status::RUNNING);
  EXPECT_EQ(FailUntil(live, IoDo::kShip, broken, last), 1000) << "while the ranks work: never";
}

TEST(DecideIoTest, WhileTheServerIsAwayNothingIsGivenUp) {
  IoStep last;
  for (const auto& [state, what] :
       {std::pair(Status::STAGING, IoDo::kStage), std::pair(Status::FINISHING, IoDo::kShipRest)}) {
    Piece piece(state);
    piece.view.away = true;
    EXPECT_EQ(FailUntil(piece, what, absl::UnavailableError("broke"), last), 1000);
  }
  EXPECT_TRUE(IsAway(MonoTime{}, kIoNow));
  EXPECT_FALSE(IsAway(kIoNow - seconds(90), kIoNow));
  EXPECT_TRUE(IsAway(kIoNow - seconds(91), kIoNow));
}

TEST(DecideIoTest, WhileRanksWorkLogsAreShippedAtAPace) {
  for (const auto& [state, pace] : {std::pair(Status::PREPARING, milliseconds(150)),
                                    std::pair(Status::RUNNING, milliseconds(150)),
                                    std::pair(Status::STOPPING, milliseconds(25))}) {
    Piece piece(state);
    EXPECT_EQ(piece.Decide().what, IoDo::kShip);
    piece.After(IoDo::kShip);
    EXPECT_EQ(piece.Decide().what, IoDo::kWait);
    EXPECT_EQ(piece.Decide().then, Nanos(pace));
    piece.memory.more = true;
    EXPECT_EQ(piece.Decide().then, Nanos(0));
    piece.view.wish.abandoned = true;
    piece.memory.BeginPiece();
    EXPECT_EQ(piece.Decide().what, IoDo::kWait) << "nobody takes them";
  }
}

TEST(DecideIoTest, AnEndIsShippedDeliveredConfirmedInThisOrder) {
  Piece piece(Status::FINISHING);
  piece.view.delivers = true;
  piece.view.checkpoints_idle = false;
  EXPECT_EQ(piece.Decide().what, IoDo::kShipRest);
  EXPECT_EQ(piece.After(IoDo::kShipRest).what, IoDo::kWait) << "not complete yet";
  EXPECT_EQ(piece.Decide().then, Nanos(0));
  piece.memory.complete = true;
  EXPECT_EQ(piece.Decide().what, IoDo::kEndCheckpoints);
  EXPECT_TRUE(piece.Decide().then) << "and waits for them";
  piece.view.checkpoints_idle = true;
  EXPECT_EQ(piece.Decide().what, IoDo::kDeliver);
  piece.After(IoDo::kDeliver);
  piece.view.delivers = false;
  EXPECT_EQ(piece.Decide().what, IoDo::kConfirm);
  piece.memory.has_all = true;
  EXPECT_EQ(piece.After(IoDo::kConfirm).what, IoDo::kFinish);
}

TEST(DecideIoTest, WhatTheServerLostDuringTheDeliveryIsShippedAgainButNotForEver) {
  Piece piece(Status::FINISHING);
  piece.Shipped();
  EXPECT_EQ(piece.After(IoDo::kConfirm).what, IoDo::kWait) << "it has not all";
  EXPECT_EQ(piece.Decide().then, Nanos(0));
  piece.memory.BeginPiece();
  EXPECT_EQ(piece.Decide().what, IoDo::kShipRest);
  EXPECT_EQ(piece.Shipped().Decide().what, IoDo::kFinish);
}

TEST(DecideIoTest, AServerThatCannotConfirmIsAskedAgain) {
  Piece piece(Status::FINISHING);
  piece.Shipped();
  EXPECT_EQ(piece.After(IoDo::kConfirm, absl::UnavailableError("")).what, IoDo::kTryAgain);
  EXPECT_EQ(piece.After(piece.Decide()).what, IoDo::kWait);
  Piece last(Status::FINISHING);
  last.Shipped();
  EXPECT_EQ(last.After(IoDo::kConfirm, absl::UnimplementedError("")).what, IoDo::kFinish);
}

TEST(DecideIoTest, AnArtifactThatIsNotTakenChangesTheVerdict) {
  struct {
    absl::Status delivered;
    bool stop, interrupted;
    IoDo what;
    AttemptEnd end;
  } const cases[] = {
      {absl::AbortedError(""), true, false, IoDo::kLoseArtifact, AttemptEnd::kStopped},
      {absl::AbortedError(""), false, false, IoDo::kTryAgain, {}},
      {absl::AbortedError(""), false, true, IoDo::kWait, {}},
      {absl::UnavailableError(""), true, false, IoDo::kTryAgain, {}},
      {absl::InvalidArgumentError(""), false, false, IoDo::kLoseArtifact,
       AttemptEnd::kArtifactLost},
      {absl::NotFoundError(""), true, false, IoDo::kLoseArtifact, AttemptEnd::kArtifactLost},
      {absl::NotFoundError(""), false, true, IoDo::kWait, {}},
  };
  for (const auto& each : cases) {
    Piece piece(Status::FINISHING);
    piece.view.delivers = true;
    piece.Shipped().After(IoDo::kDeliver, each.delivered);
    piece.view.wish.stop = each.stop;
    piece.view.wish.interrupted = each.interrupted;
    const IoStep step = piece.Decide();
    EXPECT_EQ(static_cast<int>(step.what), static_cast<int>(each.what)) << each.delivered;
    if (step.what == IoDo::kLoseArtifact) {
      EXPECT_EQ(static_cast<int>(step.end), static_cast<int>(each.end)) << each.delivered;
    }
  }
}

TEST(DecideIoTest, NobodyWhoWantsItEndsIt) {
  Piece disowned(Status::FINISHING);
  EXPECT_EQ(disowned.After(IoDo::kShipRest, absl::NotFoundError("")).what, IoDo::kFinish);
  Piece old(Status::FINISHING);
  EXPECT_EQ(old.After(IoDo::kShipRest, absl::FailedPreconditionError("")).what, IoDo::kFinish);
  Piece abandoned(Status::FINISHING);
  abandoned.view.wish.abandoned = true;
  EXPECT_EQ(abandoned.Decide().what, IoDo::kFinish);
  abandoned.view.wish.interrupted = true;
  EXPECT_EQ(abandoned.Decide().what, IoDo::kWait);
  Piece refused(Status::FINISHING);
  EXPECT_EQ(refused.After(IoDo::kShipRest, absl::PermissionDeniedError("")).what, IoDo::kTryAgain);
  EXPECT_EQ(refused.After(refused.Decide()).what, IoDo::kLeaveOut)
      << "it will say the same next time";
}

TEST(DecideIoTest, WhatIsNotItsOwnWaits) {
  for (const AttemptState state : {Status::READY, Status::DONE}) {
    Piece piece(state);
    piece.view.wish.stop = true;
    EXPECT_EQ(piece.Decide().what, IoDo::kWait);
  }
}

}  // namespace
}  // namespace sft::worker
