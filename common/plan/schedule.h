#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

// The order in which the stages of a pipeline work on the micro-batches of a step, as a pure
// function, and a checker that proves an order right before anything runs by it.

namespace sft::plan {

enum class ScheduleKind {
  // Each stage runs as few forwards ahead as keep the others busy, then one backward after each
  // forward. With several pieces a stage the pieces take turns, `stages` micro-batches at a time.
  kOneForwardOneBackward,
  kForwardOnly,  // of a validation
};

// A pipeline's step. The model is cut into stages * pieces consecutive pieces; piece c is stage
// c % stages's.
struct ScheduleShape {
  ScheduleKind kind = ScheduleKind::kOneForwardOneBackward;
  int stages = 1;
  int micro_batches = 1;
  int pieces = 1;  // of a stage

  int all_pieces() const { return stages * pieces; }
};

enum class ActionKind {
  kForward,
  kBackward,
  kSendForward,      // what a piece's forward wrote, to the stage of the next piece
  kReceiveForward,   // what a piece's forward reads, from the stage of the piece before
  kSendBackward,     // the gradient of what a piece read, to the stage of the piece before
  kReceiveBackward,  // the gradient of what a piece wrote, from the stage of the next piece
};

// One thing that a stage does.
struct Action {
  ActionKind kind = ActionKind::kForward;
  int piece = 0;  // of the model
  int micro = 0;

  bool operator==(const Action&) const = default;
  bool is_message() const { return kind > ActionKind::kBackward; }
  bool is_send() const {
    return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward;
  }
  // Towards the head, or towards the embedding.
  bool goes_forward() const {
    return kind == ActionKind::kSendForward || kind == ActionKind::kReceiveForward;
  }
  // "backward of micro-batch 3 in piece 2"
  std::string Describe() const;
};

// By stage, what it does in order. Messages are rendezvous: a stage may wait at each of its sends
// until the receiver comes to take it, and no other order of waiting is needed. A stage that is
// alone sends nothing. InvalidArgument for a shape of less than one of anything.
absl::StatusOr<std::vector<std::vector<Action>>> MakeSchedule(const ScheduleShape& shape);

// The most micro-batches whose forward in some piece of the stage is done and whose backward there
// is not, at one time, each counted once for each such piece.
int InFlight(const std::vector<Action>& actions);

// Whether the stages, each in its own order and waiting at each send until the receiver comes to
// it, get to their ends; each micro-batch goes through each piece once forward and, where there are
// backwards, once back, in that order; the backwards of a piece are in the order of the
// micro-batches, so that sums over them are those of one rank; and no stage has more micro-batches
// in flight than MostInFlight. Internal, saying what is wrong where.
absl::Status CheckSchedule(const ScheduleShape& shape,
                           const std::vector<std::vector<Action>>& schedule);

// The most that a stage may have in flight, counted as InFlight does.
int MostInFlight(const ScheduleShape& shape, int stage);

// Seconds of a piece's forward and backward.
struct PieceTime {
  double forward = 1;
  double backward = 2;
};

// How long a step takes where messages take no time: of each stage its own actions in order, each
// when what it reads is there. `times`: by piece.
double StepSeconds(const ScheduleShape& shape, const std::vector<std::vector<Action>>& schedule,
                   const std::vector<PieceTime>& times);

// The same of the shape's own schedule, for any number of micro-batches in as little time: of many,
// some are worked out, and the others take as long each as those in the middle. InvalidArgument as
// MakeSchedule.
absl::StatusOr<double> PredictStepSeconds(const ScheduleShape& shape,
                                          const std::vector<PieceTime>& times);

// The share of a step in which the stages have nothing to do, where all pieces take as long.
// InvalidArgument as MakeSchedule.
absl::StatusOr<double> BubbleShare(const ScheduleShape& shape);

}  // namespace sft::plan
