#pragma once

#include <cstdint>
#include <string_view>

#include "common/plan/memory.h"
#include "common/plan/stages.h"
#include "common/spec/job_spec.h"

namespace sft::plan {

// Activation checkpointing policy of one block: which intermediates of its forward the backward
// pass recomputes instead of keeping them. A level includes those before it; all give the same
// bits.
enum class Recompute {
  kNothing,
  kNorms,    // the norms (those of heads included), RoPE after them, and SwiGLU's product
  kMlp,      // these, and the gate and up projections
  kLinears,  // everything but attention: the block's input is kept, and what attention makes
  kAll,      // everything: only the block's input is kept
};
inline constexpr int kRecomputeLevels = 5;
// "nothing", "norms", "mlp", "linears", "all".
std::string_view NameOf(Recompute level);

// Lifetime of a block's weights in the compute type, where they are expanded from other bytes
// (ExpandsBlocks); and of the copies in FP8 of weights that are trained, which are not carried.
enum class WeightCopy {
  kNone,     // only while the block is computed: they pass through a slot
  kCarried,  // from its backward to the end of its next forward
  kKept,     // the whole run; copies of trained weights are made anew after each update
};

// How one block runs.
struct BlockPlan {
  Recompute recompute = Recompute::kNothing;
  WeightCopy copy = WeightCopy::kNone;
  // Tokens that the feed-forward layer and its backward take at a time where that is recomputed
  // (kMlp and beyond); 0: all.
  int64_t mlp_rows = 0;
  // The rows that it keeps for the backward lie in host memory until then (kNorms and beyond).
  bool on_host = false;
  // False: not even its input is kept, which is made again from that of a block before (kAll).
  bool keeps_input = true;
};

// Transfers of the optimizer on the host: elements per transfer, and how many are under way in each
// direction.
inline constexpr int64_t kHostPiece = int64_t{1} << 24;
inline constexpr int kHostTransfers = 4;

// Elements that are worked on in fp32 at a time where DoRA asks for norms of rows, and for sums
// over tokens.
inline constexpr int64_t kNormElements = int64_t{1} << 23;

// Execution plan of a rank: how it runs its share of a job where the job file does not decide.
// MakePlan (plan.h) makes it once; the predictions of memory and time, the trainer, the decoder and
// the weight sources read it. Apart from the batch, every plan of a job gives the same bits but for
// the order in which tokens add up, in FP8 the tokens that share a weight gradient's scales, and in
// tiles of tokens the masks of dropout. A plain value.
struct ExecutionPlan {
  int64_t rows = 1;           // of a micro-batch
  int64_t micro_batches = 1;  // of a step
  int64_t most_tokens = 0;    // of a micro-batch; 0: not known

  // The first `deep_layers` blocks recompute `deep`, the others `shallow`: a block's memory is free
  // again when its backward is done, and the last block's backward is done first.
  Recompute deep = Recompute::kNothing, shallow = Recompute::kNothing;
  int64_t deep_layers = 0;
  // Number of blocks, counted from the first, that keep their rows in host memory (BlockPlan).
  int64_t kept_on_host = 0;
  int64_t mlp_rows = 0;  // of every block
  // Of blocks that recompute everything, one in so many keeps its input, the first among them;
  // the blocks between run forward once more to make theirs.
  int64_t input_every = 1;
  // Number of blocks, counted from the last, whose WeightCopy is kKept.
  int64_t kept = 0;
  // Number of blocks, counted from the first, whose WeightCopy is kCarried unless they are kept.
  // Their copies lie in memory that activations leave and take again, so the peak does not grow.
  int64_t carried = 0;
  bool prefetch = true;  // the next block's weights are written into a second slot meanwhile
  // Blocks are recorded by the padded shape of the micro-batch
  // (worker/engine/model/block_graphs.h). They are not where something in the job forbids it.
  bool graphs = false;

  StageMap stages;  // of a pipeline; else one has all

  // Memory for the logits of a chunk of rows (LogitsRows).
  int64_t logits_bytes = int64_t{64} << 20;

  // What lives in host memory: the embedding's table, whose rows the GPU reads over the bus;
  // masters and optimizer states; the weights of blocks, which are streamed.
  bool embedding_on_host = false;
  bool optimizer_on_host = false;
  bool blocks_on_host = false;

  Recompute LevelOf(int64_t layer) const { return layer < deep_layers ? deep : shallow; }
  // The block from whose input that of block `layer` is made again; itself where it keeps it.
  int64_t InputFrom(int64_t layer) const {
    return LevelOf(layer) == Recompute::kAll ? layer - layer % input_every : layer;
  }
  // True if it runs forward once more for the input of the next.
  bool RunsAgain(int64_t layer, int64_t layers) const {
    return layer + 1 < layers && InputFrom(layer + 1) <= layer;
  }
  // The tiles in which the feed-forward layer of a block of this level takes so many tokens.
  int64_t TilesOf(Recompute level, int64_t tokens) const {
    const bool tiles = level >= Recompute::kMlp && mlp_rows > 0 && mlp_rows < tokens;
    return tiles ? (tokens + mlp_rows - 1) / mlp_rows : 1;
  }
  // Plan of block `layer` of `layers`.
  BlockPlan BlockOf(int64_t layer, int64_t layers) const;
  // Rows whose fp32 logits take about logits_bytes, at least 64.
  int64_t LogitsRows(int64_t vocab) const;
};

// The plan of a rank that made none: "auto" batches take the largest divisor of a rank's rows up to
// 4. The job says what is recomputed (nothing, or everything); on a GPU at least the norms are,
// which saves a third of the memory for one hundredth of the time.
ExecutionPlan Unplanned(const spec::JobSpec& job, Device device);

// Rows of a rank per step; of all ranks of a pipeline together.
int64_t RankRows(const spec::JobSpec& job);

// The job with the plan's batch: per_device_batch and gradient_accumulation_steps.
spec::JobSpec WithBatch(spec::JobSpec job, const ExecutionPlan& run);

}  // namespace sft::plan
