// Random lives of an attempt: decisions carried out in a world of values that fails at random. What
// must never happen is checked at each step, and that each life comes to its end.

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "worker/attempt/decide.h"

namespace sft::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using Status = v1::AttemptStatus;

constexpr int kLives = 3000;
constexpr int kWildRounds = 60;
constexpr int kCalmRounds = 1500;
// More steps than a turn or a piece of work can take.
constexpr int kManySteps = 20;

// The processes of the attempt, and what the shim writes.
struct Processes {
  ShimView::Phase phase = ShimView::Phase::kOther;
  bool was_started = false;  // its lock stays: there is no second
  bool late = false;         // asked for and not begun yet: it may still
  bool kept_out = false;     // none begins any more
  bool alive = false;
  bool status_written = false;
  int starts = 0;
  int64_t stops = 0;
};

// How often each step was taken.
struct Taken {
  std::map<ControlDo, int> control;
  std::map<IoDo, int> io;
  std::map<AttemptEnd, int> ends;
};

class Life {
 public:
  Life(uint32_t seed, Taken& taken) : random_(seed), taken_(taken) {
    with_gpu_ = Chance(50);
    first_rank_ = Chance(70) ? 0 : 1;
    fencing_ = Chance(70) ? Nanos(minutes(15)) : Nanos(0);
    now_ = MonoTime(minutes(10));
    disk_.dispatch.set_first_rank(first_rank_);
    NewWorker();
  }

  void Run() {
    for (int round = 0; round < kWildRounds && !Failed(); ++round) Round();
    // From here on nothing fails any more, and the server wants an end.
    calm_ = true;
    NewWorker();
    for (int round = 0; round < kCalmRounds && !forgotten_ && !Failed(); ++round) Round();
    EXPECT_TRUE(forgotten_) << "it never ends: " << Status::State_Name(state_) << " " << reason_;
    EXPECT_LE(processes_.starts, 1) << "ran twice";
    EXPECT_LE(launches_, 1);
  }

 private:
  static bool Failed() { return testing::Test::HasFailure(); }
  bool Chance(int percent) { return std::uniform_int_distribution<int>(0, 99)(random_) < percent; }
  bool Fault(int percent) { return !calm_ && Chance(percent); }

  // The worker dies and comes back: only what is on disk stays, and what the server says again.
  void NewWorker() {
    record_ = disk_;
    state_ = StateOf(record_);
    reason_.clear();
    wish_ = Wish();
    control_ = ControlMemory();
    io_.emplace();
    heard_ = MonoTime{};
    seen_newest_ = newest_;
    staged_ = false;
  }

  void Round() {
    now_ += Chance(90) ? Nanos(milliseconds(200)) : Nanos(seconds(calm_ ? 20 : 200));
    if (Fault(3)) return NewWorker();
    if (Fault(2)) {
      // Asked to end: whatever it does until it is gone must not matter.
      wish_.interrupted = true;
      Turn();
      Work();
      return NewWorker();
    }
    Server();
    World();
    if (Chance(80)) Turn();
    if (Chance(80)) Work();
    if (MayBeForgotten(state_, wish_)) Forget();
  }

  // What the server says, if it is heard.
  void Server() {
    if (Fault(30)) return;
    heard_ = now_;
    v1::DesiredAttempt desired;
    stop_wanted_ = stop_wanted_ || Chance(calm_ ? 10 : 2);
    drops_ = drops_ || Fault(1);
    checkpoint_first_ = checkpoint_first_ || (stop_wanted_ && Chance(20));
    desired.set_intent(stop_wanted_ ? v1::DesiredAttempt::STOP : v1::DesiredAttempt::RUN);
    desired.set_checkpoint_first(checkpoint_first_);
    if (Chance(5)) ++checkpoints_wanted_;
    desired.set_checkpoints_asked(checkpoints_wanted_);
    if (state_ >= Status::READY && Chance(60)) desired.set_rendezvous("a:1");
    if (state_ == Status::DONE) {
      told_done_ = true;
      desired.set_intent(v1::DesiredAttempt::FORGET);
    }
    if (drops_) {
      wish_.Abandon("the server no longer knows this attempt", false);
    } else {
      wish_.Take(desired);
    }
  }

  // What becomes of the processes by themselves.
  void World() {
    Processes& p = processes_;
    if (p.late && Chance(10)) Begin();
    if (!p.alive) return;
    p.status_written = p.status_written || Chance(70);
    using enum ShimView::Phase;
    if (p.phase == kPreparing && Chance(30)) p.phase = kRunning;
    if (p.phase == kRunning && Chance(20)) ++newest_;
    if (p.phase == kRunning && Chance(3)) p.phase = kStopping;  // a rank failed, or all are done
    if (p.phase == kStopping && Chance(50)) {
      p.phase = kExited;
      p.alive = false;
      p.status_written = true;
      ended_at_ = now_;
    }
    if (Fault(1)) {
      p.alive = false;  // killed, without a word
      p.status_written = true;
      ended_at_ = now_;
    }
  }

  // The first shim holds the lock from here on.
  void Begin() {
    processes_.late = false;
    if (processes_.was_started || processes_.kept_out) return;
    EXPECT_FALSE(record_.has_verdict() || disk_.has_verdict()) << "began after the end";
    processes_.phase = ShimView::Phase::kPreparing;
    processes_.was_started = processes_.alive = true;
    ++processes_.starts;
  }

  ShimView Look() {
    using enum ShimView::Sight;
    if (Fault(3)) return {kForbidden, ShimView::Phase::kOther, "no right"};
    if (processes_.kept_out) return {kStatus, ShimView::Phase::kExited, "it did not start"};
    if (!processes_.was_started || !processes_.status_written) return {kNone, {}, ""};
    if (!processes_.alive && processes_.phase != ShimView::Phase::kExited) {
      return {kDead, processes_.phase, ""};
    }
    return {kStatus, processes_.phase, "its reason"};
  }

  ControlView View() const {
    ControlView view;
    view.state = state_;
    view.reason = reason_;
    view.checkpoints_asked = record_.checkpoints_asked;
    view.wish = wish_;
    view.newest_checkpoint = newest_ - seen_newest_;
    view.fencing = fencing_;
    view.grace = seconds(5);
    view.heard = heard_;
    view.now = now_;
    return view;
  }

  void Turn() {
    control_.BeginTurn();
    for (int steps = 0;; ++steps) {
      ASSERT_LT(steps, kManySteps) << "a turn without an end";
      const ControlView view = View();
      const ControlStep step = DecideControl(view, control_);
      if (step.what == ControlDo::kWait) return;
      EXPECT_FALSE(wish_.interrupted) << "a worker that ends decides nothing";
      ++taken_.control[step.what];
      if (step.what == ControlDo::kJudgeEnd || step.what == ControlDo::kConclude) {
        ++taken_.ends[step.end];
      }
      const absl::Status result = Do(step, view);
      Note(step.what, result, View(), control_);
    }
  }

  absl::Status StartShim() {
    EXPECT_TRUE(disk_.launched) << "a restarted worker would start it again";
    EXPECT_FALSE(View().fenced());
    if (processes_.was_started || processes_.kept_out) {
      return absl::AlreadyExistsError("it has one");
    }
    if (Fault(5)) return absl::UnavailableError("no memory");
    const bool silent = Fault(10);
    if (silent && Chance(50)) {
      processes_.late = processes_.late || Chance(50);
      return absl::UnknownError("no word in time");
    }
    Begin();
    return silent ? absl::UnknownError("no word in time") : absl::OkStatus();
  }

  absl::Status KeepOut() {
    EXPECT_TRUE(control_.start_failed);
    if (processes_.was_started) return absl::AlreadyExistsError("it has one");
    if (Fault(20)) return absl::UnavailableError("no room");
    processes_.kept_out = true;
    return absl::OkStatus();
  }

  absl::Status Ask() {
    return processes_.alive && !Fault(15) ? absl::OkStatus() : absl::UnavailableError("no answer");
  }

  absl::Status Launch() {
    ++launches_;
    EXPECT_FALSE(wish_.stop) << "started after a stop";
    EXPECT_TRUE(staged_) << "started without its data";
    EXPECT_FALSE(disk_.launched || record_.launched);
    EXPECT_NE(wish_.rendezvous, "");
    record_.launched = true;
    disk_ = record_;
    const absl::Status started = StartShim();
    if (started.ok() || absl::IsUnknown(started) || absl::IsAlreadyExists(started)) {
      Enter(Status::PREPARING, "");
    }
    return started;
  }

  absl::Status Do(const ControlStep& step, const ControlView& view) {
    switch (step.what) {
      case ControlDo::kLook:
        control_.shim = Look();
        break;
      case ControlDo::kLaunch:
        return Launch();
      case ControlDo::kStartShim:
        EXPECT_NE(view.heard, MonoTime{}) << "it may run elsewhere";
        return StartShim();
      case ControlDo::kKeepOut:
        return KeepOut();
      case ControlDo::kRenew:
        EXPECT_GT(view.heard, control_.renewed_at);
        return Ask();
      case ControlDo::kAskCheckpoint:
      case ControlDo::kAskLast: {
        EXPECT_EQ(control_.shim->phase, ShimView::Phase::kRunning);
        EXPECT_TRUE(step.what == ControlDo::kAskCheckpoint ||
                    (view.wish.stop && !view.wish.abandoned));
        const absl::Status asked = Ask();
        if (step.what == ControlDo::kAskCheckpoint) {
          EXPECT_GT(view.wish.checkpoints_asked, record_.checkpoints_asked);
          if (asked.ok()) record_.checkpoints_asked = view.wish.checkpoints_asked;
          disk_ = record_;
        }
        return asked;
      }
      case ControlDo::kStop:
        return Stop(view);
      case ControlDo::kWatchRanks:
        EXPECT_EQ(control_.shim->phase, ShimView::Phase::kRunning);
        break;
      case ControlDo::kJudgeEnd:
        EXPECT_FALSE(control_.gone_at) << "judged twice";
        EXPECT_FALSE(processes_.alive && processes_.status_written) << "judged while ranks live";
        succeeded_ = step.end == AttemptEnd::kExited && !wish_.stop;
        break;
      case ControlDo::kLookAtMemory:
        control_.gpus = Gpus();
        break;
      case ControlDo::kAwaitMemory:
        if (!Fault(30)) read_at_ = now_;
        Enter(view.state, step.text);
        break;
      case ControlDo::kConclude:
        ConcludeControl(step);
        break;
      case ControlDo::kShow:
        EXPECT_TRUE(HasProcesses(step.state));
        EXPECT_FALSE(step.state == state_ && step.text == reason_) << "shown twice";
        Enter(step.state, step.text);
        break;
      case ControlDo::kWait:
        break;
    }
    return absl::OkStatus();
  }

  absl::Status Stop(const ControlView& view) {
    EXPECT_TRUE(view.wish.stop) << "only the server's word stops ranks";
    EXPECT_FALSE(control_.stop_taken);
    if (view.wish.checkpoint_first && !view.wish.abandoned &&
        control_.shim->phase == ShimView::Phase::kRunning) {
      EXPECT_TRUE(control_.last_asked) << "without the checkpoint that is to come first";
      EXPECT_TRUE(control_.last_refused || view.newest_checkpoint > control_.last_asked_after ||
                  now_ - *control_.last_asked >= view.grace);
    }
    const absl::Status asked = Ask();
    if (asked.ok()) processes_.phase = ShimView::Phase::kStopping;
    return asked;
  }

  std::vector<GpuMemory> Gpus() const {
    if (!with_gpu_) return {};
    GpuMemory gpu;
    gpu.now.at = read_at_;
    if (now_ - *control_.gone_at < held_for_) gpu.now.used_bytes = int64_t{1} << 40;
    return {gpu};
  }

  void ConcludeControl(const ControlStep& step) {
    EXPECT_NE(step.what == ControlDo::kConclude && step.end == AttemptEnd::kGone,
              !control_.gone_at.has_value());
    if (step.end == AttemptEnd::kStopped) {
      EXPECT_EQ(processes_.starts, 0);
      EXPECT_TRUE(wish_.stop);
    }
    EXPECT_FALSE(processes_.alive && processes_.status_written) << "ended while ranks live";
    if (with_gpu_ && step.end == AttemptEnd::kGone && step.unseen.empty()) {
      EXPECT_GT(read_at_, *control_.gone_at) << "no reading is newer than the end";
      EXPECT_GE(now_ - *control_.gone_at, held_for_) << "the GPU's memory is held";
    }
    Conclude(step.end == AttemptEnd::kGone && succeeded_ ? "succeeded" : "failed");
  }

  void Conclude(const std::string& code) {
    EXPECT_FALSE(record_.has_verdict()) << "ended twice";
    record_.verdict.set_code(code);
    disk_ = record_;
    Enter(Status::FINISHING, code);
  }

  void Enter(AttemptState state, const std::string& reason) {
    EXPECT_TRUE(state >= state_ || HasProcesses(state_)) << "went back to " << state;
    state_ = state;
    reason_ = reason;
  }

  void Work() {
    // The pauses between tries are random, and a life is to be the same each time.
    for (Retries* each : {&io_->staging, &io_->live, &io_->shipping, &io_->delivery}) {
      each->Hurry();
    }
    io_->BeginPiece();
    for (int steps = 0;; ++steps) {
      ASSERT_LT(steps, kManySteps) << "a piece of work without an end";
      IoView view;
      view.state = state_;
      view.wish = wish_;
      view.delivers =
          !record_.committed && first_rank_ == 0 && record_.verdict.code() == "succeeded";
      view.checkpoints_idle = unregistered_ == 0;
      view.away = IsAway(heard_, now_);
      view.now = now_;
      const IoStep step = DecideIo(view, *io_);
      if (step.what == IoDo::kWait) {
        ASSERT_TRUE(step.then);
        return;
      }
      ++taken_.io[step.what];
      if (step.what == IoDo::kConclude || step.what == IoDo::kLoseArtifact) {
        ++taken_.ends[step.end];
      }
      const absl::Status result = Do(step);
      Note(step, result, view, *io_);
      if (step.then) return;
    }
  }

  absl::Status Call() {
    if (Fault(20)) return absl::UnavailableError("broke");
    if (Fault(1)) return absl::InternalError("odd");
    return absl::OkStatus();
  }

  absl::Status Do(const IoStep& step) {
    switch (step.what) {
      case IoDo::kStage:
        EXPECT_FALSE(wish_.stop) << "fetched for nobody";
        if (Fault(2)) return absl::NotFoundError("no model");
        return Call();
      case IoDo::kFindTorch:
        return Fault(2) ? absl::NotFoundError("no torch") : absl::OkStatus();
      case IoDo::kReady:
        EXPECT_TRUE(io_->staged->ok() && io_->torch->ok());
        EXPECT_FALSE(wish_.leaves());
        staged_ = true;
        Enter(Status::READY, "");
        break;
      case IoDo::kShip:
        EXPECT_FALSE(wish_.abandoned);
        return Call();
      case IoDo::kShipRest:
        return ShipRest();
      case IoDo::kLeaveOut:
        EXPECT_TRUE(IsFinal(*io_->shipped) || io_->shipping.Enough());
        shipped_all_ = true;
        break;
      case IoDo::kEndCheckpoints:
        unregistered_ = Chance(50) ? 0 : unregistered_;
        break;
      case IoDo::kDeliver:
        return Deliver();
      case IoDo::kLoseArtifact:
        EXPECT_FALSE(io_->delivered->ok());
        EXPECT_EQ(record_.verdict.code(), "succeeded");
        record_.verdict.set_code(step.end == AttemptEnd::kStopped ? "stopped" : "artifact_lost");
        break;
      case IoDo::kConfirm:
        io_->has_all = !Fault(20);
        if (!io_->has_all) shipped_all_ = false;
        return Call();
      case IoDo::kConclude:
        EXPECT_EQ(processes_.starts, 0) << "given up while ranks may live";
        EXPECT_TRUE(step.end != AttemptEnd::kStagingGivenUp || io_->staging.Enough());
        EXPECT_TRUE(step.end != AttemptEnd::kStopped || wish_.stop);
        Conclude("failed");
        break;
      case IoDo::kFinish:
        Finish();
        break;
      case IoDo::kWait:
      case IoDo::kTryAgain:
        break;
    }
    return absl::OkStatus();
  }

  absl::Status ShipRest() {
    EXPECT_FALSE(wish_.abandoned);
    if (Fault(1)) {
      disowned_ = true;
      return absl::FailedPreconditionError("another epoch");
    }
    if (Fault(1)) return absl::PermissionDeniedError("not yours");
    const absl::Status shipped = Call();
    io_->complete = shipped.ok() && Chance(60);
    shipped_all_ = io_->complete;
    return shipped;
  }

  absl::Status Deliver() {
    EXPECT_TRUE(shipped_all_ && unregistered_ == 0) << "the artifact comes last";
    EXPECT_FALSE(record_.committed) << "delivered twice";
    if (Fault(5)) return absl::InvalidArgumentError("a link");
    if (wish_.stop && Chance(30)) return absl::AbortedError("stopped");
    const absl::Status delivered = Call();
    if (delivered.ok()) {
      record_.committed = true;
      disk_ = record_;
    }
    return delivered;
  }

  void Finish() {
    EXPECT_EQ(state_, Status::FINISHING);
    EXPECT_FALSE(wish_.interrupted);
    if (!wish_.abandoned && !disowned_) {
      EXPECT_EQ(unregistered_, 0) << "a checkpoint was not registered";
      const bool delivers = first_rank_ == 0 && record_.verdict.code() == "succeeded";
      EXPECT_TRUE(record_.committed || !delivers) << "the artifact was not delivered";
      EXPECT_TRUE(io_->complete && io_->confirmed) << "logs and events were not shipped";
    }
    if (!wish_.kept) {
      record_.done = true;
      disk_ = record_;
    }
    Enter(Status::DONE, "");
  }

  void Forget() {
    EXPECT_TRUE(record_.done);
    EXPECT_TRUE(told_done_ || drops_) << "forgotten while its server wants it";
    EXPECT_FALSE(processes_.alive && processes_.status_written);
    forgotten_ = true;
  }

  std::mt19937 random_;
  Taken& taken_;
  bool calm_ = false;
  MonoTime now_;
  Nanos fencing_{0};
  int first_rank_ = 0;
  bool with_gpu_ = false;
  Nanos held_for_ = seconds(7);

  // The node.
  AttemptRecord disk_;
  Processes processes_;
  int launches_ = 0;
  int64_t newest_ = 0;
  int unregistered_ = 1;
  MonoTime ended_at_{};
  MonoTime read_at_{};
  bool forgotten_ = false;
  // The server.
  bool stop_wanted_ = false, drops_ = false, checkpoint_first_ = false, told_done_ = false;
  bool disowned_ = false, shipped_all_ = false;
  int64_t checkpoints_wanted_ = 0;
  // The worker.
  AttemptRecord record_;
  AttemptState state_ = Status::STAGING;
  std::string reason_;
  Wish wish_;
  MonoTime heard_{};
  ControlMemory control_;
  std::optional<IoMemory> io_;
  int64_t seen_newest_ = 0;
  bool staged_ = false;
  bool succeeded_ = false;
};

TEST(DecideWalkTest, NoLifeRunsTwiceLosesWhatItsServerWantsOrLastsForEver) {
  Taken taken;
  for (uint32_t seed = 1; seed <= kLives && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "life " << seed);
    Life(seed, taken).Run();
  }
  // All steps and ends were met but two: the world has no broken status files, and is not away long
  // enough for staging to be given up.
  EXPECT_EQ(taken.control.size(), static_cast<size_t>(ControlDo::kShow));
  EXPECT_EQ(taken.io.size(), static_cast<size_t>(IoDo::kFinish));
  EXPECT_EQ(taken.ends.size(), 8u);
}

}  // namespace
}  // namespace sft::worker
