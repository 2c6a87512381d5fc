#include "common/plan/pipeline_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/round.h"
#include "common/plan/schedule.h"
#include "common/plan/step_time.h"

namespace sft::plan {
namespace {

constexpr int64_t kMostLogitsBytes = int64_t{1} << 30;
constexpr int64_t kFewestLogitsBytes = int64_t{64} << 20;

// What a stage takes longer than as many blocks of a whole model, of the device's time: Qwen3-8B 6
// % in two stages, and 10 in two of two pieces. Receives that wait hold some of the GPU's
// processors.
constexpr double kBesideMessages = 0.08;

// How much less of a GPU's memory a stage is filled with each time.
constexpr double kLessOfAStage = 1.0 / 32;

// The times of a StepTime that every micro-batch takes again.
constexpr double StepTime::*kOfMicroBatches[] = {
    &StepTime::products, &StepTime::attention, &StepTime::elementwise, &StepTime::adapters,
    &StepTime::weights,  &StepTime::recompute, &StepTime::launches};

int64_t TrainedOf(const Unit& unit) {
  int64_t trained = 0;
  for (const Parameter& parameter : unit.parameters) {
    if (parameter.trainable) trained += parameter.elements;
  }
  return trained;
}

ScheduleShape ShapeOf(const ExecutionPlan& run) {
  return {.stages = run.stages.stages,
          .micro_batches = static_cast<int>(run.micro_batches),
          .pieces = run.stages.pieces_of_stage()};
}

struct PipelineCandidate {
  ExecutionPlan run;
  PeakMemory memory;
  StepTime time;
};

class PipelineSearch {
 public:
  PipelineSearch(const Problem& problem, const PlanInput& input, StageMap stages)
      : problem_(problem), input_(input), stages_(std::move(stages)), headless_(problem) {
    headless_.head_elements = 0;
    for (int stage = 0; stage < stages_.stages; ++stage) {
      of_stages_.push_back(StageProblem(problem, stages_, stage));
    }
    const StageMap alone{.stages = stages_.pieces(), .begins = stages_.begins};
    for (int piece = 0; piece < stages_.pieces(); ++piece) {
      of_pieces_.push_back(StageProblem(headless_, alone, piece));
    }
  }

  absl::StatusOr<Plan> Run() {
    for (const int64_t rows : RowOptions(problem_)) {
      for (int level = 0; level < kRecomputeLevels; ++level) Add(rows, level);
    }
    if (!best_) return Refusal();
    return Plan{best_->run, best_->memory, best_->time};
  }

 private:
  ExecutionPlan RunOf(int64_t rows, Recompute level) const {
    return {.rows = rows,
            .micro_batches = RankRows(problem_.job) / rows,
            .most_tokens = rows * problem_.row_tokens,
            .deep = level,
            .shallow = level,
            .deep_layers = problem_.shape.layers,
            .stages = stages_,
            .logits_bytes = kMostLogitsBytes};
  }

  // That of the fullest stage, and which it is.
  std::pair<PeakMemory, int> Fullest(const ExecutionPlan& run) const {
    std::pair<PeakMemory, int> fullest;
    for (int stage = 0; stage < stages_.stages; ++stage) {
      const PeakMemory memory = StageMemory(of_stages_[static_cast<size_t>(stage)], run, stage);
      if (stage == 0 || memory.reserved() > fullest.first.reserved()) fullest = {memory, stage};
    }
    return fullest;
  }

  void Add(int64_t rows, int level) {
    const bool all = problem_.job.parallelism.activation_checkpointing;
    if (all && static_cast<Recompute>(level) != Recompute::kAll) return;
    ExecutionPlan run = RunOf(rows, static_cast<Recompute>(level));
    PeakMemory memory = Fullest(run).first;
    while (memory.reserved() > input_.memory_bytes && run.logits_bytes > kFewestLogitsBytes) {
      run.logits_bytes /= 2;
      memory = Fullest(run).first;
    }
    if (memory.reserved() > input_.memory_bytes) return;
    const StepTime time = TimeOf(run);
    if (!best_ || time.total() < best_->time.total()) best_ = PipelineCandidate{run, memory, time};
  }

  bool HasBlocks(int piece) const {
    const auto at = static_cast<size_t>(piece);
    const int first = std::max(stages_.begins[at], 1);
    return first < std::min(stages_.begins[at + 1], stages_.begins.back() - 1);
  }

  // A micro-batch in each piece: its blocks, and the head where it has that.
  StepTime PieceTimeOf(const ExecutionPlan& run, int piece) const {
    const Problem& blocks = of_pieces_[static_cast<size_t>(piece)];
    ExecutionPlan own = run;
    own.deep_layers = blocks.shape.layers;
    StepTime time;
    double calls = 0;
    if (HasBlocks(piece)) {
      const MicroBatchTime micro_batch = PredictMicroBatch(blocks, own, input_.gpu);
      time = micro_batch.time;
      calls = micro_batch.calls;
    }
    if (piece + 1 == stages_.pieces()) {
      const StepTime all = PredictMicroBatch(problem_, run, input_.gpu).time;
      const StepTime without = PredictMicroBatch(headless_, run, input_.gpu).time;
      time.products += all.products - without.products;
      time.elementwise += all.elementwise - without.elementwise;
    }
    const double device = time.total() - time.launches;
    const double host = HasBlocks(piece) ? LaunchSeconds(time, blocks.shape.layers, calls) : 0;
    time.launches = std::max(time.launches + kBesideMessages * device, host - device);
    return time;
  }

  StepTime TimeOf(const ExecutionPlan& run) const {
    StepTime time;
    std::vector<PieceTime> pieces;
    double alone = 0;
    for (int piece = 0; piece < stages_.pieces(); ++piece) {
      const StepTime own = PieceTimeOf(run, piece);
      const double forward = (own.total() - own.recompute) / (problem_.job.full_finetune() ? 3 : 2);
      pieces.push_back({forward, own.total() - forward});
      alone += own.total();
      for (double StepTime::*part : kOfMicroBatches) time.*part += own.*part;
    }
    const absl::StatusOr<double> seconds = PredictStepSeconds(ShapeOf(run), pieces);
    const double factor = seconds.ok() ? *seconds / alone : 1.0;
    for (double StepTime::*part : kOfMicroBatches) time.*part *= factor;
    for (const Problem& stage : of_stages_) {
      time.optimizer = std::max(time.optimizer, PredictTime(stage, run, input_.gpu).optimizer);
    }
    time.launches += kStepOverhead;
    return time;
  }

  absl::Status Refusal() const {
    ExecutionPlan run = RunOf(1, Recompute::kAll);
    run.logits_bytes = kFewestLogitsBytes;
    const auto [memory, stage] = Fullest(run);
    return ResourceExhausted(fmt::format(
        "the job does not fit: with one row a micro-batch and everything recomputed stage {} of {} "
        "({}) needs {} on each of its GPUs, which have {}. What would fit: more stages "
        "(pipeline_parallel_size), fsdp = true beside them, a shorter sequence_length{}",
        stage, stages_.stages, stages_.ToText(), BytesText(memory.reserved()),
        BytesText(input_.memory_bytes), problem_.job.qlora() ? "" : ", or use_qlora = true"));
  }

  const Problem& problem_;
  const PlanInput& input_;
  StageMap stages_;
  Problem headless_;
  std::vector<Problem> of_stages_, of_pieces_;
  std::optional<PipelineCandidate> best_;
};

}  // namespace

Problem StageProblem(const Problem& whole, const StageMap& stages, int stage) {
  Problem part = whole;
  part.units.clear();
  part.blocks.clear();
  part.shape.tied_head = false;
  for (ModelShape* shape : {&part.shape, &part.attention}) {
    shape->layer_shapes.clear();
    shape->layer_options.clear();
  }
  const auto holds = [&](size_t unit) { return stages.StageOf(static_cast<int>(unit)) == stage; };
  const size_t head = whole.units.size() - 1;
  part.units.push_back(holds(0) ? whole.units[0] : Unit{});
  const auto add = [&](size_t layer, Unit unit) {
    part.units.push_back(std::move(unit));
    part.blocks.push_back(whole.blocks[layer]);
    for (const auto& [all, own] :
         {std::pair{&whole.shape, &part.shape}, std::pair{&whole.attention, &part.attention}}) {
      if (!all->layer_shapes.empty()) own->layer_shapes.push_back(all->layer_shapes[layer]);
      if (!all->layer_options.empty()) own->layer_options.push_back(all->layer_options[layer]);
    }
  };
  for (size_t unit = 1; unit < head; ++unit) {
    if (holds(unit)) add(unit - 1, whole.units[unit]);
  }
  // A stage without blocks is given the rows of one.
  if (part.blocks.empty()) add(head - 2, Unit{});
  part.units.push_back(holds(head) ? whole.units[head] : Unit{});
  if (holds(head) && whole.shape.tied_head && !holds(0)) {
    part.units.back().parameters.push_back(whole.units[0].parameters[0]);
  }
  part.shape.layers = part.attention.layers = static_cast<int64_t>(part.blocks.size());
  part.held = PlanMemory(part.units, part.job, Device::kGpu);
  part.trained.clear();
  for (const Unit& unit : part.units) part.trained.push_back(TrainedOf(unit));
  if (!holds(0)) part.embedding_elements = 0;
  return part;
}

PeakMemory StageMemory(const Problem& p, const ExecutionPlan& run, int stage) {
  ExecutionPlan own = run;
  own.deep_layers = p.shape.layers;
  PeakMemory memory = PredictMemory(p, own);
  const ScheduleShape shape = ShapeOf(run);
  // Each of a stage's pieces keeps its share of the stage's activations. The walk counts one
  // micro-batch through all of them.
  int64_t of_micro_batch = 0;
  const auto level = static_cast<size_t>(own.shallow);
  for (int64_t layer = 0; layer < p.shape.layers; ++layer) {
    of_micro_batch += MicroBatchTokens(p, own) * p.blocks[static_cast<size_t>(layer)].saved[level];
  }
  const int64_t in_flight = MostInFlight(shape, stage);
  memory.activations +=
      std::max<int64_t>(0, CeilDiv(in_flight * of_micro_batch, shape.pieces) - of_micro_batch);
  // Rows on their way from and to the neighbours: those received ahead, and those being sent.
  constexpr int64_t kRowsUnderWay = 4;
  memory.communication += kRowsUnderWay * MicroBatchTokens(p, own) * p.hidden_row();
  return memory;
}

absl::StatusOr<Plan> PlanPipeline(const Problem& problem, const PlanInput& input) {
  const auto planned = [&](double stage_memory) -> absl::StatusOr<Plan> {
    SFT_ASSIGN_OR_RETURN(StageMap stages, DivideModel(input.shape, input.job, stage_memory));
    return PipelineSearch(problem, input, std::move(stages)).Run();
  };
  const auto memory = static_cast<double>(input.memory_bytes);
  absl::StatusOr<Plan> made = planned(memory);
  // "sequential" fills a stage with what stays: less of it, where its activations have no room.
  for (double room = memory; !made.ok() && absl::IsResourceExhausted(made.status());) {
    room -= memory * kLessOfAStage;
    if (input.job.parallelism.device_map != std::vector<std::string>{"sequential"}) break;
    absl::StatusOr<Plan> less = planned(room);
    if (!less.ok() && !absl::IsResourceExhausted(less.status())) break;
    made = std::move(less);
  }
  SFT_ASSIGN_OR_RETURN(Plan plan, std::move(made));
  const double tokens = static_cast<double>(RankRows(input.job) * input.job.data_ranks()) *
                        static_cast<double>(problem.row_tokens);
  plan.tokens_per_second = tokens / plan.time.total();
  return plan;
}

}  // namespace sft::plan
