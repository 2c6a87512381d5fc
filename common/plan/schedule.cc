#include "common/plan/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "common/base/round.h"

namespace sft::plan {
namespace {

// Groups of stages * pieces micro-batches after which a pipeline does the same again and again.
constexpr int64_t kUntilSteady = 4;

using Order = std::vector<Action>;

// One value for each forward and backward of a step.
template <typename T>
class OfWork {
 public:
  OfWork(const ScheduleShape& shape, T value)
      : micro_batches_(static_cast<size_t>(shape.micro_batches)),
        values_(2 * static_cast<size_t>(shape.all_pieces()) * micro_batches_, value) {}

  T& At(bool back, int piece, int micro) { return values_[Index(back, piece, micro)]; }
  const T& At(bool back, int piece, int micro) const { return values_[Index(back, piece, micro)]; }

 private:
  size_t Index(bool back, int piece, int micro) const {
    return (2 * static_cast<size_t>(piece) + (back ? 1 : 0)) * micro_batches_ +
           static_cast<size_t>(micro);
  }

  size_t micro_batches_;
  std::vector<T> values_;
};

// The forwards of a stage, or its backwards: its pieces take turns, `stages` micro-batches each.
Order InTurns(const ScheduleShape& shape, int stage, ActionKind kind) {
  Order order;
  for (int first = 0; first < shape.micro_batches; first += shape.stages) {
    const int end = std::min(first + shape.stages, shape.micro_batches);
    for (int turn = 0; turn < shape.pieces; ++turn) {
      const int piece = kind == ActionKind::kForward ? turn : shape.pieces - 1 - turn;
      for (int micro = first; micro < end; ++micro) {
        order.push_back({kind, piece * shape.stages + stage, micro});
      }
    }
  }
  return order;
}

// What a stage computes, in order: as many forwards as keep the others busy, then a forward and a
// backward in turn.
Order Compute(const ScheduleShape& shape, int stage) {
  const Order forwards = InTurns(shape, stage, ActionKind::kForward);
  if (shape.kind == ScheduleKind::kForwardOnly) return forwards;
  const Order backwards = InTurns(shape, stage, ActionKind::kBackward);
  const auto ahead = static_cast<size_t>(MostInFlight(shape, stage) - 1);
  Order order(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(ahead));
  for (size_t i = 0; i < backwards.size(); ++i) {
    if (ahead + i < forwards.size()) order.push_back(forwards[ahead + i]);
    order.push_back(backwards[i]);
  }
  return order;
}

// Messages that a piece's work gives out and takes in.
struct Messages {
  bool takes = false, gives = false;
  Action taken, given;
};

Messages MessagesOf(const ScheduleShape& shape, const Action& work) {
  Messages messages;
  if (shape.stages == 1) return messages;
  const int last = shape.all_pieces() - 1;
  if (work.kind == ActionKind::kForward) {
    messages.takes = work.piece > 0;
    messages.gives = work.piece < last;
    messages.taken = {ActionKind::kReceiveForward, work.piece, work.micro};
    messages.given = {ActionKind::kSendForward, work.piece, work.micro};
  } else {
    messages.takes = work.piece < last;
    messages.gives = work.piece > 0;
    messages.taken = {ActionKind::kReceiveBackward, work.piece, work.micro};
    messages.given = {ActionKind::kSendBackward, work.piece, work.micro};
  }
  return messages;
}

// The other end of a message.
Action PeerOf(const Action& message) {
  switch (message.kind) {
    case ActionKind::kSendForward:
      return {ActionKind::kReceiveForward, message.piece + 1, message.micro};
    case ActionKind::kReceiveForward:
      return {ActionKind::kSendForward, message.piece - 1, message.micro};
    case ActionKind::kSendBackward:
      return {ActionKind::kReceiveBackward, message.piece - 1, message.micro};
    default:
      return {ActionKind::kSendBackward, message.piece + 1, message.micro};
  }
}

// Lays out the work of all stages in time, as if a backward took twice a forward.
class Layout {
 public:
  explicit Layout(const ScheduleShape& shape)
      : shape_(shape), stages_(static_cast<size_t>(shape.stages)), done_(shape, 0) {
    for (int stage = 0; stage < shape.stages; ++stage) At(stage).work = Compute(shape, stage);
  }

  // Each message is put into both lists when its sender has finished. So all lists together have
  // one order in which both ends of each message come next, which is why none waits for ever.
  absl::StatusOr<std::vector<Order>> Run() {
    for (int64_t now = 0; !Done(); ++now) {
      for (Stage& stage : stages_) {
        if (stage.under_way && stage.until == now) Finish(stage);
      }
      bool works = false;
      for (Stage& stage : stages_) works |= Works(stage, now);
      if (!works && !Done()) {
        return Internal(fmt::format("no stage of {} can go on with {} micro-batches", shape_.stages,
                                    shape_.micro_batches));
      }
    }
    std::vector<Order> orders;
    for (Stage& stage : stages_) orders.push_back(std::move(stage.order));
    return orders;
  }

 private:
  struct Stage {
    Order work, order;
    size_t next = 0;  // of its work
    bool under_way = false;
    int64_t until = 0;
  };
  Stage& At(int stage) { return stages_[static_cast<size_t>(stage)]; }

  bool Done() const {
    return std::all_of(stages_.begin(), stages_.end(),
                       [](const Stage& s) { return s.next == s.work.size(); });
  }

  // What it reads is there: what another piece wrote, and for a backward its forward.
  bool Ready(const Action& work) const {
    const bool back = work.kind == ActionKind::kBackward;
    if (back && done_.At(false, work.piece, work.micro) == 0) return false;
    const int from = work.piece + (back ? 1 : -1);
    return from < 0 || from == shape_.all_pieces() || done_.At(back, from, work.micro) != 0;
  }

  // Starts its next work where that can be; true if it is at work.
  bool Works(Stage& stage, int64_t now) {
    if (stage.under_way) return true;
    if (stage.next == stage.work.size() || !Ready(stage.work[stage.next])) return false;
    const Action& work = stage.work[stage.next];
    stage.order.push_back(work);
    stage.until = now + (work.kind == ActionKind::kBackward ? 2 : 1);
    stage.under_way = true;
    return true;
  }

  void Finish(Stage& stage) {
    stage.under_way = false;
    const Action& work = stage.work[stage.next++];
    done_.At(work.kind == ActionKind::kBackward, work.piece, work.micro) = 1;
    const Messages messages = MessagesOf(shape_, work);
    if (!messages.gives) return;
    stage.order.push_back(messages.given);
    const Action taken = PeerOf(messages.given);
    At(taken.piece % shape_.stages).order.push_back(taken);
  }

  const ScheduleShape& shape_;
  std::vector<Stage> stages_;
  OfWork<char> done_;
};

// Runs the lists of a schedule as ranks would that wait at each message for its other end.
class Checker {
 public:
  Checker(const ScheduleShape& shape, const std::vector<Order>& schedule)
      : shape_(shape), schedule_(schedule), next_(schedule.size(), 0) {}

  absl::Status Run() {
    if (static_cast<int>(schedule_.size()) != shape_.stages) {
      return Internal(fmt::format("{} lists for {} stages", schedule_.size(), shape_.stages));
    }
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t stage = 0; stage < schedule_.size(); ++stage) {
        while (!Ended(stage)) {
          const Action& action = schedule_[stage][next_[stage]];
          if (action.is_message()) {
            if (!Meet(stage, action)) break;
          } else {
            SFT_RETURN_IF_ERROR(Work(stage, action));
            ++next_[stage];
          }
          moved = true;
        }
      }
    }
    for (size_t stage = 0; stage < schedule_.size(); ++stage) {
      if (Ended(stage)) continue;
      return Internal(fmt::format("stage {} waits for ever at the {}", stage,
                                  schedule_[stage][next_[stage]].Describe()));
    }
    return CheckComplete();
  }

 private:
  bool Ended(size_t stage) const { return next_[stage] == schedule_[stage].size(); }
  absl::Status Wrong(size_t stage, const Action& action, std::string_view what) const {
    return Internal(fmt::format("stage {}: {} {}", stage, action.Describe(), what));
  }

  // True when the peer has come to the other end, and both go on.
  bool Meet(size_t stage, const Action& action) {
    const Action peer = PeerOf(action);
    const auto other = static_cast<size_t>(peer.piece % shape_.stages);
    if (other == stage || Ended(other) || !(schedule_[other][next_[other]] == peer)) return false;
    if (action.is_send() && !Sendable(action)) return false;
    if (peer.is_send() && !Sendable(peer)) return false;
    const Action& taken = action.is_send() ? peer : action;
    received_.insert({taken.kind, taken.piece, taken.micro});
    ++next_[stage];
    ++next_[other];
    return true;
  }

  bool Sendable(const Action& send) const {
    const auto& done = send.kind == ActionKind::kSendForward ? forward_ : backward_;
    return done.contains({send.piece, send.micro});
  }

  absl::Status Work(size_t stage, const Action& action) {
    const int last = shape_.all_pieces() - 1;
    if (action.piece < 0 || action.piece > last ||
        action.piece % shape_.stages != static_cast<int>(stage) || action.micro < 0 ||
        action.micro >= shape_.micro_batches) {
      return Wrong(stage, action, "is not its work");
    }
    const Messages messages = MessagesOf(shape_, action);
    const bool back = action.kind == ActionKind::kBackward;
    if (messages.takes && received_.erase({messages.taken.kind, action.piece, action.micro}) == 0) {
      return Wrong(stage, action, "comes before what it reads");
    }
    if (!back) {
      if (!forward_.insert({action.piece, action.micro}).second) {
        return Wrong(stage, action, "comes twice");
      }
      return absl::OkStatus();
    }
    if (!forward_.contains({action.piece, action.micro})) {
      return Wrong(stage, action, "comes before its forward");
    }
    int& next = backwards_of_[action.piece];
    if (action.micro != next) return Wrong(stage, action, "is out of order");
    ++next;
    backward_.insert({action.piece, action.micro});
    return absl::OkStatus();
  }

  absl::Status CheckComplete() const {
    const size_t all =
        static_cast<size_t>(shape_.all_pieces()) * static_cast<size_t>(shape_.micro_batches);
    const bool backs = shape_.kind != ScheduleKind::kForwardOnly;
    if (forward_.size() != all || backward_.size() != (backs ? all : 0)) {
      return Internal(fmt::format("{} forwards and {} backwards of {}", forward_.size(),
                                  backward_.size(), all));
    }
    for (size_t stage = 0; backs && stage < schedule_.size(); ++stage) {
      const int most = MostInFlight(shape_, static_cast<int>(stage));
      const int seen = InFlight(schedule_[stage]);
      if (seen <= most) continue;
      return Internal(fmt::format("stage {} has {} in flight, more than {}", stage, seen, most));
    }
    return absl::OkStatus();
  }

  const ScheduleShape& shape_;
  const std::vector<Order>& schedule_;
  std::vector<size_t> next_;
  std::set<std::pair<int, int>> forward_, backward_;  // piece and micro-batch
  std::set<std::tuple<ActionKind, int, int>> received_;
  std::map<int, int> backwards_of_;  // by piece
};

}  // namespace

std::string Action::Describe() const {
  static constexpr const char* kNames[] = {"forward",          "backward",
                                           "send of forward",  "receive of forward",
                                           "send of backward", "receive of backward"};
  return fmt::format("{} of micro-batch {} in piece {}", kNames[static_cast<int>(kind)], micro,
                     piece);
}

absl::StatusOr<std::vector<std::vector<Action>>> MakeSchedule(const ScheduleShape& shape) {
  if (shape.stages < 1 || shape.micro_batches < 1 || shape.pieces < 1) {
    return InvalidArgument(fmt::format("no schedule of {} stages, {} micro-batches and {} pieces",
                                       shape.stages, shape.micro_batches, shape.pieces));
  }
  // Pieces take turns by whole groups of micro-batches: those that fill the last group are left out
  // of the lists again.
  ScheduleShape whole = shape;
  if (shape.pieces > 1) {
    whole.micro_batches = static_cast<int>(RoundUp(shape.micro_batches, shape.stages));
  }
  SFT_ASSIGN_OR_RETURN(std::vector<Order> orders, Layout(whole).Run());
  for (Order& order : orders) {
    std::erase_if(order, [&](const Action& a) { return a.micro >= shape.micro_batches; });
  }
  return orders;
}

absl::Status CheckSchedule(const ScheduleShape& shape,
                           const std::vector<std::vector<Action>>& schedule) {
  return Checker(shape, schedule).Run();
}

int InFlight(const std::vector<Action>& actions) {
  int now = 0, most = 0;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kForward) most = std::max(most, ++now);
    if (action.kind == ActionKind::kBackward) --now;
  }
  return most;
}

int MostInFlight(const ScheduleShape& shape, int stage) {
  const int behind = shape.stages - 1 - stage;
  const int most =
      shape.pieces == 1 ? behind + 1 : 2 * behind + (shape.pieces - 1) * shape.stages + 1;
  return static_cast<int>(std::min(int64_t{most}, int64_t{shape.micro_batches} * shape.pieces));
}

double StepSeconds(const ScheduleShape& shape, const std::vector<std::vector<Action>>& schedule,
                   const std::vector<PieceTime>& times) {
  OfWork<double> done(shape, -1);  // when; not yet: -1
  std::vector<size_t> next(schedule.size(), 0);
  std::vector<double> free(schedule.size(), 0.0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t stage = 0; stage < schedule.size(); ++stage) {
      for (; next[stage] < schedule[stage].size(); ++next[stage], moved = true) {
        const Action& action = schedule[stage][next[stage]];
        if (action.is_message()) continue;
        const bool back = action.kind == ActionKind::kBackward;
        const int from = back ? action.piece + 1 : action.piece - 1;
        double start = free[stage];
        if (from >= 0 && from < shape.all_pieces()) {
          const double read = done.At(back, from, action.micro);
          if (read < 0) break;
          start = std::max(start, read);
        }
        const PieceTime& time = times[static_cast<size_t>(action.piece)];
        free[stage] = start + (back ? time.backward : time.forward);
        done.At(back, action.piece, action.micro) = free[stage];
      }
    }
  }
  return *std::max_element(free.begin(), free.end());
}

absl::StatusOr<double> PredictStepSeconds(const ScheduleShape& shape,
                                          const std::vector<PieceTime>& times) {
  const auto seconds_of = [&](int64_t micro_batches) -> absl::StatusOr<double> {
    ScheduleShape part = shape;
    part.micro_batches = static_cast<int>(micro_batches);
    SFT_ASSIGN_OR_RETURN(const auto schedule, MakeSchedule(part));
    return StepSeconds(part, schedule, times);
  };
  const int64_t period = kUntilSteady * shape.stages * shape.pieces;
  if (period < 1 || shape.micro_batches < 3 * period) return seconds_of(shape.micro_batches);
  // What is left out is a whole number of periods.
  const int64_t some = 2 * period + shape.micro_batches % period;
  SFT_ASSIGN_OR_RETURN(const double less, seconds_of(some - period));
  SFT_ASSIGN_OR_RETURN(const double more, seconds_of(some));
  const int64_t periods = (shape.micro_batches - some) / period;
  return more + static_cast<double>(periods) * (more - less);
}

absl::StatusOr<double> BubbleShare(const ScheduleShape& shape) {
  const std::vector<PieceTime> times(static_cast<size_t>(shape.all_pieces()));
  const bool backs = shape.kind != ScheduleKind::kForwardOnly;
  SFT_ASSIGN_OR_RETURN(const double seconds, PredictStepSeconds(shape, times));
  const double busy = static_cast<double>(shape.micro_batches) * shape.pieces *
                      (times[0].forward + (backs ? times[0].backward : 0.0));
  return 1.0 - busy / seconds;
}

}  // namespace sft::plan
