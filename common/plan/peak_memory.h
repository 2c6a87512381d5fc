#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/base/round.h"
#include "common/plan/block.h"
#include "common/plan/context.h"
#include "common/plan/execution.h"
#include "common/plan/memory.h"
#include "common/plan/parameters.h"
#include "common/plan/tensor.h"

namespace sft::plan {

// A job on a model, prepared once for the predictions of memory and of time. Plain values.
struct Problem {
  ModelShape shape;                      // as a rank has it
  ModelShape attention;                  // the heads that a rank's attention has of it
  std::vector<TensorExchange> exchange;  // by layer
  spec::JobSpec job;
  std::vector<Unit> units;
  Memory held;  // for the whole run
  std::vector<BlockCost> blocks;
  int64_t element_bytes = 2;
  int64_t row_tokens = 0;        // tokens in a full row
  std::vector<int64_t> trained;  // elements by unit
  // Trained elements that several of the ranks that share matrices have, by how many do.
  std::map<int64_t, int64_t> shared;
  int64_t head_elements = 0;       // vocab * hidden
  int64_t embedding_elements = 0;  // of all in the embedding's unit
  // Bytes of a token that go from layer to layer beside the residual stream, from the forward to
  // the backward: the layers' own inputs, and keys and values that several layers attend to, with
  // the gradients that there are of them.
  int64_t link_bytes = 0;

  // That see different tokens, and sum their gradients.
  int64_t ranks() const { return job.token_ranks(); }
  // What a rank has of so many full rows.
  int64_t TokensOf(int64_t rows) const { return ShareOfTokens(rows * row_tokens, job); }
  // That share each matrix; and the tokens that a rank's head sees of so many full rows.
  int64_t matrix_ranks() const { return job.parallelism.tensor_parallel_size; }
  int64_t HeadTokens(int64_t rows) const { return CeilDiv(TokensOf(rows), matrix_ranks()); }
  ShardParts parts() const { return PartsOf(job); }
  // Weights pass through slots, even with one rank.
  bool shards_weights() const {
    return job.parallelism.sharding == spec::Sharding::kFullShard ||
           job.parallelism.sharding == spec::Sharding::kHybridShard;
  }
  // The weights of blocks come from host memory.
  bool streams() const { return Streams(job, Device::kGpu); }
  bool streams_trained() const { return streams() && job.full_finetune(); }
  bool expands_blocks() const { return ExpandsBlocks(job, Device::kGpu); }
  // Blocks' weights have copies that may be kept: expanded, or in FP8 beside whole trained weights.
  bool may_keep_copies() const {
    return expands_blocks() || (job.fp8_copies() && !shards_weights() && !streams());
  }
  // Bytes that this rank holds of what its blocks are expanded from.
  int64_t ExpandedFrom() const;
  // ZeRO-1 and 2: weights are whole, and are collected from all ranks.
  bool shares_whole_weights() const { return parts().states > parts().weights; }
  // The head's weight, which may be the embedding's, has a gradient.
  bool trains_head() const {
    const size_t unit = shape.tied_head ? 0 : trained.size() - 1;
    return trained[unit] >= head_elements;
  }
  bool may_hold_embedding_on_host() const {
    return shape.layer_input == 0 && !shape.tied_head && trained[0] == 0 && !shards_weights();
  }
  // Each micro-batch's gradients are cut and sent, with `wire_bytes` per element.
  bool scatters_gradients() const {
    return shards_weights() || job.parallelism.sharding == spec::Sharding::kZero2;
  }
  int64_t wire_bytes() const { return job.full_finetune() && shards_weights() ? element_bytes : 4; }
  // Masters and states live on the host, and gradients go there with `host_wire_bytes` per element.
  bool offloads() const { return Offloads(job, Device::kGpu); }
  int64_t host_wire_bytes() const { return job.full_finetune() ? element_bytes : 4; }
  // Elements of the matrices of blocks [first, first + count), and of the block with the most.
  int64_t MatrixElements(int64_t first, int64_t count) const;
  int64_t MostMatrixElements() const;
  int64_t MostStacks() const;   // elements of a block's stacks of experts
  int64_t MostTrained() const;  // elements of a block
  int64_t hidden_row() const { return blocks.front().hidden_row; }
  // Elements per transfer to the host and back.
  int64_t host_piece() const;
};
absl::StatusOr<Problem> MakeProblem(const ModelShape& shape, const spec::JobSpec& job,
                                    int64_t row_tokens);

// Memory that a rank's allocator holds at the step's peak, in bytes.
struct PeakMemory {
  int64_t weights = 0;  // frozen and not quantised
  int64_t quantized_weights = 0;
  int64_t kept_copies = 0;      // expanded weights that are kept
  int64_t carried_copies = 0;   // not at the peak: between steps, where activations were
  int64_t scratch_slots = 0;    // that blocks' weights pass through, one block at a time
  int64_t trained_weights = 0;  // in the compute type, and their masters
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;  // kept for the backward
  int64_t transients = 0;   // of the forward or backward under way
  int64_t attention_workspace = 0;
  int64_t logits = 0;
  int64_t communication = 0;    // whole gradients, and gathered bytes in transit
  int64_t graphs = 0;           // private memory of recorded blocks
  int64_t fixed = 0;            // workspaces of libraries, tables, tokens
  int64_t allocator_slack = 0;  // fragmentation: free pieces between used ones

  // Host memory beside all this: weights, masters, states, buffers; and what blocks keep.
  int64_t host = 0;
  int64_t host_activations = 0;

  int64_t resident() const;  // held for the whole run
  int64_t between_steps() const { return resident() + carried_copies; }
  int64_t allocated() const;
  int64_t reserved() const { return allocated() + allocator_slack; }
};

// Host memory of a rank for weights, and for masters and states with their transfer buffers; 0
// where the GPU holds all.
int64_t HostBytes(const Problem& problem);

// Tokens in a micro-batch of full rows, padding included.
int64_t MicroBatchTokens(const Problem& problem, const ExecutionPlan& run);

// Bytes that a block keeps in host memory for its backward.
int64_t HostKept(const Problem& problem, const ExecutionPlan& run, int64_t layer);

// Rows of a micro-batch whose logits are computed at a time.
int64_t LogitsRows(const Problem& problem, const ExecutionPlan& run);

// The rows that a micro-batch may have, from the most: divisors of those of a rank, or of
// per_device_batch, that kernels can index.
std::vector<int64_t> RowOptions(const Problem& problem);

PeakMemory PredictMemory(const Problem& problem, const ExecutionPlan& run);

// True when blocks may be recorded: everything they read and add to must stay at its address, and
// only the shape of a micro-batch may decide what they do. This rules out weights that pass through
// slots or come from other ranks or the host, gradients that are cut, dropout, experts, and
// attention that processes documents one by one.
bool MayRecord(const Problem& problem, const ExecutionPlan& run);

// The most blocks that may carry their expanded weights to the next step within the peak of
// `run`, less some room for fragments that activations leave; `run.carried` is ignored. A block's
// copy is made during the backward of the block after it (during its own without prefetch) and
// freed after its forward. 0 in FP8, whose forward and backward read different bytes, and where
// blocks' weights are used as they lie.
int64_t MostCarried(const Problem& problem, const ExecutionPlan& run);
std::vector<MemoryItem> Items(const PeakMemory& memory);

}  // namespace sft::plan
