#include "worker/attempt/decide.h"

#include <gtest/gtest.h>

#include <functional>

namespace sft::worker {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
using Status = v1::AttemptStatus;
using Sight = ShimView::Sight;
using Phase = ShimView::Phase;

constexpr MonoTime kNow{hours(100)};

// One moment of the main thread.
struct Moment {
  ControlView view;
  ControlMemory memory;

  Moment() {
    view.state = Status::READY;
    view.heard = kNow - seconds(1);
    view.now = kNow;
    view.fencing = minutes(15);
    view.grace = seconds(5);
    memory.renewed_at = view.heard;
  }
  Moment(AttemptState state, Sight sight, Phase phase = Phase::kOther) : Moment() {
    view.state = state;
    memory.shim = ShimView{sight, phase, "its text"};
  }
  ControlStep Decide() const { return DecideControl(view, memory); }
  // Notes a step, and what comes after it.
  ControlStep After(ControlDo what, const absl::Status& result = absl::OkStatus()) {
    Note(what, result, view, memory);
    return Decide();
  }

  Moment With(const std::function<void(Moment&)>& change) const {
    Moment changed = *this;
    change(changed);
    return changed;
  }
  Moment Stop(bool checkpoint_first = false) const {
    return With([&](Moment& m) {
      m.view.wish.stop = true;
      m.view.wish.checkpoint_first = checkpoint_first;
    });
  }
  Moment Addressed() const {
    return With([](Moment& m) { m.view.wish.rendezvous = "a:1"; });
  }
  // The server was heard of so long ago.
  Moment Heard(Nanos ago) const {
    return With([&](Moment& m) { m.view.heard = kNow - ago; });
  }
  // The job's ranks go on without the server for ever.
  Moment Unfenced() const {
    return With([](Moment& m) { m.view.fencing = Nanos(0); });
  }
  Moment Interrupted() const {
    return With([](Moment& m) { m.view.wish.interrupted = true; });
  }
  Moment StartFailed() const {
    return With([](Moment& m) { m.memory.start_failed = true; });
  }
  Moment CheckpointsWanted() const {
    return With([](Moment& m) { m.view.wish.checkpoints_asked = 1; });
  }
  // Stops, and the checkpoint that comes first was asked for so long ago.
  Moment AskedLast(Nanos ago) const {
    return Stop(true).With([&](Moment& m) {
      m.memory.last_asked = kNow - ago;
      m.memory.last_asked_after = m.view.newest_checkpoint = 7;
    });
  }
  Moment Gone() const {
    return With([](Moment& m) { m.memory.gone_at = kNow - seconds(1); });
  }
};

Moment Preparing() { return {Status::PREPARING, Sight::kStatus, Phase::kPreparing}; }

// The ranks were watched in this turn.
Moment Running() {
  return Moment(Status::RUNNING, Sight::kStatus, Phase::kRunning).With([](Moment& m) {
    m.memory.done = {ControlDo::kWatchRanks};
  });
}

// The launch is on record, and no shim shows.
Moment NoShim() { return {Status::PREPARING, Sight::kNone}; }

struct ControlCase {
  std::string name;
  Moment moment;
  ControlDo what;
  std::optional<AttemptEnd> end = std::nullopt;
  std::optional<AttemptState> shown = std::nullopt;
};

void Check(const std::vector<ControlCase>& cases) {
  for (const ControlCase& each : cases) {
    const ControlStep step = each.moment.Decide();
    EXPECT_EQ(static_cast<int>(step.what), static_cast<int>(each.what)) << each.name;
    if (each.end) {
      EXPECT_EQ(static_cast<int>(step.end), static_cast<int>(*each.end)) << each.name;
    }
    if (each.shown) {
      EXPECT_EQ(step.state, *each.shown) << each.name;
    }
  }
}

TEST(DecideControlTest, BeforeTheLaunch) {
  using enum ControlDo;
  const Moment ready;
  Check({
      {"no address", ready, kWait},
      {"with the address", ready.Addressed(), kLaunch},
      {"told to stop", ready.Stop(), kConclude, AttemptEnd::kStopped},
      {"with the address, told to stop", ready.Addressed().Stop(), kConclude, AttemptEnd::kStopped},
      {"the server silent for too long", ready.Addressed().Heard(minutes(15)), kWait},
      {"which does not matter", ready.Addressed().Heard(hours(99)).Unfenced(), kLaunch},
      {"the worker ends", ready.Addressed().Interrupted(), kWait},
      {"the start failed", ready.Addressed().StartFailed(), kConclude, AttemptEnd::kStartFailed},
  });
  for (const AttemptState state : {Status::STAGING, Status::FINISHING, Status::DONE}) {
    const Moment moment(state, Sight::kStatus, Phase::kExited);
    Check({{"not the main thread's", moment, kWait}, {"likewise", moment.Stop(), kWait}});
  }
}

TEST(DecideControlTest, AShimThatDoesNotShowHowItIs) {
  using enum ControlDo;
  const auto again_at = [](MonoTime at) {
    return NoShim().With([at](Moment& m) { m.memory.start_again_at = at; });
  };
  Check({
      {"not looked yet", NoShim().With([](Moment& m) { m.memory.shim.reset(); }), kLook},
      {"no shim", NoShim(), kStartShim},
      {"told to stop: only a shim knows", NoShim().Stop(), kStartShim},
      {"the server not heard of in this life",
       NoShim().Unfenced().With([](Moment& m) { m.view.heard = MonoTime{}; }), kWait},
      {"the server silent for too long", NoShim().Heard(minutes(16)), kWait},
      {"a start was not answered", again_at(kNow + seconds(1)), kWait},
      {"and that long ago", again_at(kNow), kStartShim},
      {"the start failed: an earlier shim may come yet", NoShim().StartFailed(), kKeepOut},
      {"and can come no more",
       NoShim().StartFailed().With([](Moment& m) { m.memory.kept_out = true; }), kJudgeEnd,
       AttemptEnd::kStartFailed},
      {"the server is to hear of it", NoShim().With([](Moment& m) { m.memory.silence = "x"; }),
       kShow, std::nullopt, Status::PREPARING},
      {"the status may not be read", Moment(Status::RUNNING, Sight::kForbidden), kShow,
       std::nullopt, Status::PREPARING},
      {"still not", Moment(Status::PREPARING, Sight::kForbidden), kWait},
      {"still not, told to stop", Moment(Status::PREPARING, Sight::kForbidden).Stop(), kWait},
      {"broken", Moment(Status::RUNNING, Sight::kBroken), kJudgeEnd, AttemptEnd::kStatusBroken},
      {"the shim died", Moment(Status::RUNNING, Sight::kDead, Phase::kRunning), kJudgeEnd,
       AttemptEnd::kShimLost},
  });
}

TEST(DecideControlTest, AShimThatShowsHowItIs) {
  using enum ControlDo;
  Check({
      {"preparing", Preparing(), kWait},
      {"running, and the server does not know it yet",
       Running().With([](Moment& m) { m.view.state = Status::PREPARING; }), kShow, std::nullopt,
       Status::RUNNING},
      {"running", Running(), kWait},
      {"not watched yet", Running().With([](Moment& m) { m.memory.done.clear(); }), kWatchRanks},
      {"stopping", Running().With([](Moment& m) { m.memory.shim->phase = Phase::kStopping; }),
       kShow, std::nullopt, Status::STOPPING},
      {"the server was heard of again", Running().Heard(Nanos(0)), kRenew},
      {"a checkpoint is wanted", Running().CheckpointsWanted(), kAskCheckpoint},
      {"and was asked for",
       Running().CheckpointsWanted().With([](Moment& m) { m.view.checkpoints_asked = 1; }), kWait},
      {"nothing to write yet", Preparing().CheckpointsWanted(), kWait},
      {"all ended", Moment(Status::PREPARING, Sight::kStatus, Phase::kExited), kJudgeEnd,
       AttemptEnd::kExited},
  });
}

TEST(DecideControlTest, AStop) {
  using enum ControlDo;
  const auto refused = [](Moment& m) { m.memory.last_refused = true; };
  const auto patient = [](Moment& m) { m.view.wish.checkpoint_patience = minutes(1); };
  Check({
      {"running", Running().Stop(), kStop},
      {"preparing", Preparing().Stop(), kStop},
      {"the shim has the order",
       Running().Stop().With([](Moment& m) { m.memory.stop_taken = true; }), kWait},
      {"only the worker ends", Running().Interrupted(), kWait},
      {"a checkpoint first", Running().Stop(true), kAskLast},
      {"there is none to write", Preparing().Stop(true), kStop},
      {"nobody wants it",
       Running().Stop(true).With([](Moment& m) { m.view.wish.abandoned = true; }), kStop},
      {"it is being written", Running().AskedLast(seconds(4)), kShow, std::nullopt,
       Status::STOPPING},
      {"it does not come within the grace", Running().AskedLast(seconds(5)), kStop},
      {"it may take longer", Running().AskedLast(seconds(59)).With(patient), kShow, std::nullopt,
       Status::STOPPING},
      {"not for ever", Running().AskedLast(seconds(60)).With(patient), kStop},
      {"it is there",
       Running().AskedLast(seconds(1)).With([](Moment& m) { m.view.newest_checkpoint = 8; }),
       kStop},
      {"the shim did not ask for it", Running().AskedLast(Nanos(0)).With(refused), kStop},
  });
}

TEST(DecideControlTest, TheProcessesAreGone) {
  using enum ControlDo;
  const auto gpus = [](std::vector<GpuMemory> memory) {
    return Running().Gone().With([&](Moment& m) { m.memory.gpus = memory; });
  };
  const GpuMemory unread{.slot = 0, .before = 0, .now = {.at = kNow - seconds(2)}};
  Check({
      {"not looked at the memory", Running().Gone(), kLookAtMemory},
      {"no GPUs", gpus({}), kConclude, AttemptEnd::kGone},
      {"not read yet", gpus({unread}), kAwaitMemory},
      {"the worker ends", gpus({}).Interrupted(), kWait},
  });
}

TEST(DecideControlTest, ALaunchEndsItsTurnUnlessItFailed) {
  Moment moment;
  moment.view.wish.rendezvous = "a:1";
  Moment again = moment, unknown = moment, failed = moment;
  EXPECT_EQ(moment.After(ControlDo::kLaunch).what, ControlDo::kWait);
  EXPECT_EQ(again.After(ControlDo::kLaunch, absl::AlreadyExistsError("")).what, ControlDo::kWait);
  EXPECT_EQ(unknown.After(ControlDo::kLaunch, absl::UnknownError("")).what, ControlDo::kWait);
  EXPECT_EQ(unknown.memory.start_again_at, kNow + seconds(30));
  EXPECT_EQ(failed.After(ControlDo::kLaunch, absl::UnavailableError("")).what,
            ControlDo::kConclude);
}

TEST(DecideControlTest, AnOrderThatIsNotTakenIsGivenInTheNextTurnAndToldAfterAMinute) {
  Moment moment = Running().Stop();
  EXPECT_NE(moment.After(ControlDo::kStop, absl::UnavailableError("no answer")).what,
            ControlDo::kStop)
      << "once in a turn";
  EXPECT_FALSE(moment.memory.stuck);
  moment.view.now += seconds(60);
  const ShimView shim = *moment.memory.shim;
  moment.memory.BeginTurn();
  moment.memory.shim = shim;
  EXPECT_EQ(moment.After(ControlDo::kLook).what, ControlDo::kStop);
  moment.After(ControlDo::kStop, absl::UnavailableError("no answer"));
  EXPECT_TRUE(moment.memory.stuck);
  EXPECT_EQ(moment.memory.silence,
            "its shim does not take the order to stop (no answer): look at the sft-shim of this "
            "attempt on the node");
  moment.After(ControlDo::kStop);
  EXPECT_FALSE(moment.memory.stuck);
  EXPECT_TRUE(moment.memory.stop_taken);
}

TEST(DecideControlTest, AShimThatSaysNothingIsToldAfterAMinuteAndForgivenWhenItSpeaks) {
  Moment moment(Status::PREPARING, Sight::kForbidden);
  moment.After(ControlDo::kLook);
  EXPECT_EQ(moment.memory.silence, "");
  moment.view.now += seconds(60);
  EXPECT_EQ(moment.After(ControlDo::kLook).what, ControlDo::kShow);
  EXPECT_NE(moment.memory.silence.find("cannot be read (its text)"), std::string::npos);
  moment.memory.shim = ShimView{Sight::kStatus, Phase::kPreparing, ""};
  moment.After(ControlDo::kLook);
  EXPECT_EQ(moment.memory.silence, "");
  EXPECT_FALSE(moment.memory.silent_since);
  // Nobody has heard of the server in this life: a shim that does not show is no news yet.
  moment.memory.shim = ShimView{Sight::kNone, Phase::kOther, ""};
  moment.view.heard = MonoTime{};
  moment.After(ControlDo::kLook);
  EXPECT_FALSE(moment.memory.silent_since);
}

TEST(DecideControlTest, AWordOfTheServerIsPassedOnOnce) {
  Moment moment = Running();
  moment.view.heard = kNow;
  EXPECT_EQ(moment.After(ControlDo::kRenew).what, ControlDo::kWait);
  EXPECT_EQ(moment.memory.renewed_at, kNow);
  moment.view.heard = kNow + seconds(1);
  moment.memory.done = {ControlDo::kWatchRanks};
  EXPECT_EQ(moment.After(ControlDo::kRenew, absl::UnavailableError("")).what, ControlDo::kWait)
      << "not again in this turn";
  EXPECT_EQ(moment.memory.renewed_at, kNow);
}

TEST(DecideControlTest, TheServersWishOnlyGrows) {
  Wish wish;
  v1::DesiredAttempt desired;
  desired.set_intent(v1::DesiredAttempt::RUN);
  desired.set_rendezvous("a:1");
  desired.set_checkpoints_asked(2);
  wish.Take(desired);
  EXPECT_FALSE(wish.leaves());
  desired.set_intent(v1::DesiredAttempt::STOP);
  desired.set_reason("cancelled");
  desired.set_checkpoint_first(true);
  desired.set_checkpoint_patience_seconds(60);
  wish.Take(desired);
  v1::DesiredAttempt run;
  run.set_intent(v1::DesiredAttempt::RUN);
  run.set_reason("go on");
  wish.Take(run);
  desired.set_reason("cancelled again");
  wish.Take(desired);
  EXPECT_TRUE(wish.stop && wish.checkpoint_first && !wish.abandoned);
  EXPECT_EQ(wish.stop_reason, "cancelled");
  EXPECT_EQ(wish.rendezvous, "a:1");
  EXPECT_EQ(wish.checkpoints_asked, 2);
  EXPECT_EQ(wish.checkpoint_patience, minutes(1));
  wish.Abandon("refused", /*lasts=*/true);
  EXPECT_EQ(wish.stop_reason, "cancelled");
  EXPECT_TRUE(wish.abandoned && wish.kept);
  run.set_intent(v1::DesiredAttempt::FORGET);
  Wish forgotten;
  forgotten.Take(run);
  EXPECT_TRUE(forgotten.stop && forgotten.abandoned && !forgotten.kept);
}

TEST(DecideControlTest, OnlyWhatIsDoneAndUnwantedIsForgotten) {
  for (int state = Status::MISSING; state <= Status::DONE; ++state) {
    for (const bool abandoned : {false, true}) {
      for (const bool kept : {false, true}) {
        Wish wish;
        wish.abandoned = abandoned;
        wish.kept = kept;
        EXPECT_EQ(MayBeForgotten(static_cast<AttemptState>(state), wish),
                  state == Status::DONE && abandoned && !kept);
      }
    }
  }
}

TEST(DecideControlTest, ARecordSaysWhereItsNextLifeGoesOn) {
  AttemptRecord record;
  EXPECT_EQ(StateOf(record), Status::STAGING);
  record.launched = true;
  EXPECT_EQ(StateOf(record), Status::PREPARING);
  record.verdict.set_code("stopped");
  EXPECT_EQ(StateOf(record), Status::FINISHING);
  record.done = true;
  EXPECT_EQ(StateOf(record), Status::DONE);
}

struct MemoryCase {
  std::string name;
  Inventory::Memory memory;
  Nanos after;  // the end of the processes
  std::string held;
  std::string unseen;
};

TEST(JudgeMemoryTest, AGpuIsFreeWhenItsMemoryIsSeenBackOrNobodyWillBePlacedOnIt) {
  constexpr int64_t kBefore = 1'000'000'000;
  const MonoTime end = kNow;
  const Inventory::Memory back{.used_bytes = kBefore + (512 << 20), .at = end + seconds(1)};
  const Inventory::Memory held{.used_bytes = back.used_bytes + 1, .at = end + seconds(1)};
  Inventory::Memory sick = held;
  sick.healthy = false;
  const Inventory::Memory old{.used_bytes = kBefore, .at = end};
  Inventory::Memory lost = old;
  lost.unreadable_at = end + seconds(1);
  const MemoryCase cases[] = {
      {"back", back, seconds(2), "", ""},
      {"held", held, seconds(2), "GPU 3 still holds", ""},
      {"held for long by a healthy one", held, hours(2), "GPU 3 still holds", ""},
      {"held by a sick one", sick, seconds(30), "GPU 3 still holds", ""},
      {"held for long by a sick one", sick, seconds(31), "", "GPU 3 still holds"},
      {"no reading", old, seconds(30), "waiting for a reading", ""},
      {"no reading for long", old, seconds(31), "", "GPU 3 could not be read for 30 s"},
      {"cannot be read", lost, seconds(2), "", "GPU 3 cannot be read"},
  };
  for (const MemoryCase& each : cases) {
    const MemoryJudgement judged = JudgeMemory({{3, kBefore, each.memory}}, end, end + each.after);
    EXPECT_TRUE(judged.held.starts_with(each.held)) << each.name << ": " << judged.held;
    EXPECT_EQ(judged.held.empty(), each.held.empty()) << each.name;
    ASSERT_EQ(judged.unseen.size(), each.unseen.empty() ? 0u : 1u) << each.name;
    if (!each.unseen.empty()) {
      EXPECT_TRUE(judged.unseen[0].starts_with(each.unseen)) << each.name;
    }
  }
  EXPECT_NE(JudgeMemory({{0, 0, held}, {1, kBefore, back}}, end, end).held, "") << "one of two";
}

}  // namespace
}  // namespace sft::worker
