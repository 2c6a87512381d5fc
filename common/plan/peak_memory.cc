#include "common/plan/peak_memory.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "common/base/round.h"
#include "common/plan/attention_calls.h"
#include "common/plan/attention_cost.h"

namespace sft::plan {
namespace {

constexpr int64_t kGradientBytes = 4;
constexpr int64_t kScaleBytes = 4;
constexpr int64_t kSlots = 2;        // slots of a walk over blocks: one in use, one being filled
constexpr int64_t kNormBuffers = 2;  // of kNormElements in fp32
// Workspaces of cuBLAS and of the products of factors.
constexpr int64_t kLibraryWorkspace = int64_t{100} << 20;
// Fragmentation left in the caching allocator, as a share of what is allocated and freed in a step;
// FP8 products leave more. Measured (docs/benchmarks/qlora.md).
constexpr double kSlackOfStep = 0.015;
constexpr double kSlackOfFp8Step = 0.03;
constexpr int64_t kSlack = int64_t{64} << 20;
// Share of the peak that carried weights leave free: beyond it the allocator maps memory anew in
// each step, 23 ms for Qwen3-32B on an H100, a third of a step for Qwen3-8B within 24 GB.
constexpr double kCarriedLeaves = 0.07;

// Tokens of a micro-batch beyond which nothing gets faster, and the most elements that kernels can
// index.
constexpr int64_t kMostTokens = 65536;
constexpr int64_t kMostElements = int64_t{1} << 31;

struct Moment {
  int64_t activations = 0, transients = 0, workspace = 0, logits = 0, communication = 0;
  int64_t total() const { return activations + transients + workspace + logits + communication; }
};

// Bytes per element of a unit's whole gradient: a block's is computed in the type it is sent in.
int64_t WholeBytes(const Problem& p, size_t unit) {
  return IsBlock(p.units, unit) ? p.wire_bytes() : kGradientBytes;
}

// Whole gradients that exist beside their shards: that of the unit whose backward runs, that of the
// unit before it, which is being reduced, and the reduced part.
int64_t GradientsOnTheirWay(const Problem& p, size_t unit) {
  if (!p.scatters_gradients()) return 0;
  const int64_t pending = unit + 1 < p.trained.size() ? p.trained[unit + 1] : 0;
  const int64_t part = CeilDiv(std::max(p.trained[unit], pending), p.parts().gradients);
  return WholeBytes(p, unit) * p.trained[unit] + p.wire_bytes() * (pending + part);
}

// A finished unit's gradient converted to the type it is sent in, where that differs.
int64_t WireCopy(const Problem& p, size_t unit) {
  const bool copies = p.scatters_gradients() && p.wire_bytes() != WholeBytes(p, unit);
  return copies ? p.wire_bytes() * p.trained[unit] : 0;
}

// The whole gradient of a table that is the head too: the head's backward begins it, and the
// embedding's ends it.
int64_t TiedGradient(const Problem& p) {
  return p.scatters_gradients() && p.shape.tied_head ? WholeBytes(p, 0) * p.trained[0] : 0;
}

int64_t LogitsBytes(const Problem& p, const ExecutionPlan& run) {
  // Capped logits keep their slope beside them until they are their own gradient.
  const int64_t copies = p.shape.logit_cap > 0 ? 2 : 1;
  return copies * LogitsRows(p, run) * p.shape.vocab * p.element_bytes;
}

const Moment& Fuller(const Moment& a, const Moment& b) { return b.total() > a.total() ? b : a; }

// The peaks of a micro-batch: for each block the larger of its forward and backward (the forward
// needs less unless blocks are recomputed), for the head with the loss, and for the embedding's
// backward, which is last.
struct Moments {
  std::vector<Moment> blocks;
  Moment head, embedding;

  Moment Worst() const {
    Moment worst = Fuller(head, embedding);
    for (const Moment& block : blocks) worst = Fuller(worst, block);
    return worst;
  }
};

// What is on its way to the host and back: the block's own, and that of the block before.
int64_t OnTheBus(const Problem& p, const ExecutionPlan& run, int64_t layer) {
  int64_t bytes = HostKept(p, run, run.InputFrom(layer));
  if (layer > 0) bytes += HostKept(p, run, run.InputFrom(layer - 1));
  return bytes;
}

// Inputs of blocks that were made again and wait for their backward, up to the block's own.
int64_t Rebuilt(const Problem& p, const ExecutionPlan& run, int64_t layer) {
  return (layer - run.InputFrom(layer)) * MicroBatchTokens(p, run) * p.hidden_row();
}

struct SubLayerPeaks {
  int64_t forward = 0, backward_mlp = 0;
};

// The peaks of a block beside what it keeps, with its feed-forward layer in tiles where the plan
// says so.
SubLayerPeaks PeaksOf(const Problem& p, const ExecutionPlan& run, int64_t layer) {
  const BlockCost& block = p.blocks[layer];
  const int64_t tokens = MicroBatchTokens(p, run);
  const Recompute level = run.LevelOf(layer);
  const auto index = static_cast<size_t>(level);
  SubLayerPeaks peaks{tokens * block.forward[index], tokens * block.backward_mlp[index]};
  if (!block.tiles || run.TilesOf(level, tokens) == 1) return peaks;
  peaks.forward = tokens * block.tiled_forward[index] + run.mlp_rows * block.tile_forward;
  peaks.backward_mlp -= (tokens - run.mlp_rows) * block.tile_backward;
  return peaks;
}

// Workspace of a layer's attention in its backward; bytes.
int64_t WorkspaceOf(const Problem& p, const ExecutionPlan& run, int64_t layer) {
  const bool in_order = p.job.training.deterministic;
  if (p.job.context_nodes() == 1) {
    return AttentionWorkspace(p.attention, layer, run.rows, p.row_tokens, in_order);
  }
  // Half of a node's tokens at a time, up to the last (worker/engine/nn/key_gather.h).
  const int64_t all = MicroBatchTokens(p, run) * p.job.parallelism.context_parallel_size;
  return FlashWorkspace(p.attention, layer, all / (2 * p.job.context_nodes()), all, in_order);
}

Moments MomentsOf(const Problem& p, const ExecutionPlan& run) {
  Moments moments;
  const int64_t tokens = MicroBatchTokens(p, run);
  int64_t saved = tokens * p.link_bytes;  // these, and what the blocks so far keep
  int64_t workspace = 0;
  for (int64_t layer = 0; layer < p.shape.layers; ++layer) {
    const BlockCost& block = p.blocks[layer];
    if (layer == 0 || !p.shape.SameAttention(layer, layer - 1)) {
      workspace = WorkspaceOf(p, run, layer);
    }
    const auto level = static_cast<size_t>(run.LevelOf(layer));
    const int64_t before = saved;
    const bool keeps_input = run.InputFrom(layer) == layer;
    saved += tokens * (block.saved[level] - (keeps_input ? 0 : block.hidden_row)) -
             HostKept(p, run, layer);
    const int64_t moving = OnTheBus(p, run, layer) + Rebuilt(p, run, layer);
    const SubLayerPeaks peaks = PeaksOf(p, run, layer);
    const int64_t on_their_way =
        TiedGradient(p) + GradientsOnTheirWay(p, static_cast<size_t>(layer) + 1);
    // Before and after the exchange of tokens and heads.
    const ExchangedElements exchanged = ExchangedOf(p.shape, layer, p.job);
    // Keys and values of all nodes as they arrive and in their order; in the backward these, what
    // a run of queries leaves at them, and its sums in fp32.
    const int64_t gathered = tokens * GatheredOf(p.shape, layer, p.job);
    const int64_t exchange = 2 * (tokens * exchanged.inputs + gathered) * p.element_bytes;
    const int64_t keys = gathered * (2 * p.element_bytes + kGradientBytes);
    Moment worst{.activations = saved, .transients = moving + std::max(peaks.forward, exchange)};
    worst = Fuller(worst,
                   {.activations = before,
                    .transients = moving + tokens * block.hidden_row,
                    .communication = on_their_way + WireCopy(p, static_cast<size_t>(layer) + 1)});
    worst = Fuller(worst, {.activations = saved,
                           .transients = moving + peaks.backward_mlp,
                           .communication = on_their_way});
    worst = Fuller(worst, {.activations = saved,
                           .transients = moving + tokens * block.backward_attention[level] +
                                         tokens * exchanged.backward() * p.element_bytes + keys,
                           .workspace = workspace,
                           .communication = on_their_way});
    moments.blocks.push_back(worst);
  }
  // The last block's output, the rows with targets, their norm, and the gradient of each.
  moments.head = {.activations = saved,
                  .transients = 4 * tokens * p.hidden_row(),
                  .logits = LogitsBytes(p, run),
                  .communication = TiedGradient(p) + GradientsOnTheirWay(p, p.units.size() - 1) +
                                   WireCopy(p, p.units.size() - 1)};
  if (p.trained[0] > 0) {
    moments.embedding = {.activations = tokens * p.link_bytes,
                         .transients = tokens * p.hidden_row(),
                         .communication = GradientsOnTheirWay(p, 0) + WireCopy(p, 0)};
  }
  return moments;
}

// Memory that recorded blocks take beyond others: their memory is private, so the head's or a
// validation's comes on top of their peak; their inputs and outputs; workspaces of libraries.
int64_t GraphBytes(const Problem& p, const ExecutionPlan& run, const Moments& moments,
                   int64_t tokens) {
  constexpr int64_t kRows = 3;    // hidden states: into the blocks, out of them, and the gradient
  constexpr int64_t kShared = 4;  // at most, for shapes that grow (BlockGraphs::Share)
  Moment worst;
  for (const Moment& block : moments.blocks) worst = Fuller(worst, block);
  const auto level = static_cast<size_t>(run.LevelOf(0));
  const int64_t validation = tokens * p.blocks[0].forward[level] + LogitsBytes(p, run);
  const int64_t outside = std::max(moments.head.total() - moments.head.activations,
                                   p.job.training.validation.enabled ? validation : 0);
  return worst.total() + outside - moments.Worst().total() +
         kShared * kRows * tokens * p.hidden_row() + kLibraryWorkspace;
}

// Bytes of the scales of stacks of experts: one for each row and column of each expert. Those of
// other linears are too few to count.
int64_t Fp8ScaleBytes(const Problem& p) {
  int64_t scales = 0;
  for (const BlockCost& block : p.blocks) scales += block.stack_scales;
  return kScaleBytes * scales;
}

// Adds buffers that weights pass through, and bytes in transit into them.
void AddScratch(const Problem& p, const ExecutionPlan& run, PeakMemory* memory) {
  const int64_t layers = p.shape.layers, e = p.element_bytes;
  if (p.expands_blocks()) {
    const int64_t slots = run.prefetch || p.shards_weights() ? kSlots : 1;
    const int64_t walked = std::min(slots, layers - run.kept);
    memory->scratch_slots += walked * p.MostMatrixElements() * e;
    memory->kept_copies = p.MatrixElements(layers - run.kept, run.kept) * e;
    memory->carried_copies = p.MatrixElements(0, run.carried) * e;
    if (p.parts().weights > 1 || p.streams()) {
      // The next block is gathered once this one has been.
      const int64_t under_way = p.streams() ? walked : std::min<int64_t>(walked, 1);
      memory->communication += under_way * p.ExpandedFrom() * p.parts().weights / layers;
    }
    if (p.job.fp8()) memory->transients += e * p.MostStacks() + Fp8ScaleBytes(p);
  } else if (!p.job.full_finetune()) {
    // Room for the adapters beside the weights. In FP8 these are held twice, as they stand and
    // transposed, in as many bytes as once in 16 bits, with the scales beside them.
    for (const BlockCost& block : p.blocks) {
      memory->weights += (block.matrix_elements - block.held_weights) * e;
    }
    if (p.job.fp8_frozen()) memory->weights += Fp8ScaleBytes(p);
  } else if (p.job.fp8_copies()) {
    // A byte an element as it is read and one transposed. A block's that are not kept are made when
    // it begins and freed when it ends.
    memory->kept_copies = 2 * p.MatrixElements(layers - run.kept, run.kept);
    if (run.kept < layers) memory->transients += 2 * p.MostMatrixElements();
  }
  if (p.shards_weights()) {
    const int64_t trained = p.MostTrained();
    memory->scratch_slots += e * (kSlots * trained + p.embedding_elements);
    // A rank's part in transit from the host, until it has been gathered.
    if (p.streams_trained() && p.parts().weights > 1) {
      memory->communication += e * CeilDiv(trained, p.parts().weights);
    }
  } else if (p.streams_trained()) {
    memory->scratch_slots += e * kSlots * p.MostTrained();
  }
}

// Of a token: cosines and sines in fp32, a table for each size of heads.
int64_t RopeTableBytes(const ModelShape& shape) {
  std::set<int64_t> sizes;
  for (int64_t layer = 0; layer < shape.layers; ++layer) sizes.insert(shape.Layer(layer).head_dim);
  return 4 * std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

int64_t LinkBytesOf(const Problem& p) {
  const int64_t inputs = p.shape.layers * p.shape.layer_input * p.element_bytes;
  int64_t bytes = (p.trained[0] > 0 ? 2 : 1) * inputs;
  for (int64_t layer = 0; layer < p.shape.layers; ++layer) {
    const LayerShape sizes = p.shape.Layer(layer);
    const int64_t elements = 2 * sizes.kv_heads * sizes.head_dim;
    if (p.shape.Lends(layer)) bytes += elements * (p.element_bytes + kGradientBytes);
  }
  return bytes;
}

// Problem::shared, by what a rank has of each parameter of the whole model.
std::map<int64_t, int64_t> SharedOf(const std::vector<Unit>& whole, const std::vector<Unit>& own,
                                    int64_t ranks) {
  std::map<int64_t, int64_t> shared;
  for (size_t unit = 0; unit < own.size(); ++unit) {
    for (size_t i = 0; i < own[unit].parameters.size(); ++i) {
      const Parameter& parameter = own[unit].parameters[i];
      if (!parameter.trainable) continue;
      const int64_t sharers = ranks * parameter.elements / whole[unit].parameters[i].elements;
      if (sharers > 1) shared[sharers] += parameter.elements;
    }
  }
  return shared;
}

}  // namespace

absl::StatusOr<Problem> MakeProblem(const ModelShape& shape, const spec::JobSpec& job,
                                    int64_t row_tokens) {
  Problem problem;
  SFT_ASSIGN_OR_RETURN(problem.units, MakeUnitsOfRank(shape, job));
  problem.shape = ShapeOfTensorRank(shape, job);
  problem.attention = ShapeOfShare(problem.shape, job);
  problem.job = job;
  problem.held = PlanMemory(problem.units, job, Device::kGpu);
  problem.element_bytes = ComputeTypeOf(job, Device::kGpu) == spec::ComputeType::kBf16 ? 2 : 4;
  problem.blocks = CostsOfBlocks(problem.shape, job, problem.element_bytes);
  problem.row_tokens = row_tokens;
  problem.head_elements = shape.vocab * shape.hidden;
  for (const Parameter& parameter : problem.units.front().parameters) {
    problem.embedding_elements += parameter.elements;
  }
  for (const Unit& unit : problem.units) {
    int64_t trained = 0;
    for (const Parameter& parameter : unit.parameters) {
      if (parameter.trainable) trained += parameter.elements;
    }
    problem.trained.push_back(trained);
  }
  problem.exchange = TensorExchangesOf(shape, job);
  if (problem.matrix_ranks() > 1) {
    SFT_ASSIGN_OR_RETURN(const std::vector<Unit> whole, MakeUnits(shape, job));
    problem.shared = SharedOf(whole, problem.units, problem.matrix_ranks());
  }
  problem.link_bytes = LinkBytesOf(problem);
  return problem;
}

int64_t Problem::ExpandedFrom() const {
  if (job.qlora() || streams()) return held.quantized_weights + held.host_weights;
  int64_t elements = 0;
  for (const BlockCost& block : blocks) elements += block.held_weights;
  return CeilDiv(elements, parts().weights) * element_bytes;
}

int64_t Problem::MatrixElements(int64_t first, int64_t count) const {
  int64_t elements = 0;
  for (int64_t i = first; i < first + count; ++i) elements += blocks[i].matrix_elements;
  return elements;
}

int64_t Problem::MostMatrixElements() const {
  int64_t most = 0;
  for (const BlockCost& block : blocks) most = std::max(most, block.matrix_elements);
  return most;
}

int64_t Problem::MostStacks() const {
  int64_t most = 0;
  for (const BlockCost& block : blocks) most = std::max(most, block.stacks);
  return most;
}

int64_t Problem::MostTrained() const {
  return *std::max_element(trained.begin() + 1, trained.end() - 1);
}

int64_t Problem::host_piece() const {
  int64_t largest = 0;
  for (const int64_t elements : trained) {
    largest = std::max(largest, CeilDiv(elements, parts().states));
  }
  return std::min(largest, kHostPiece);
}

int64_t HostBytes(const Problem& p) {
  if (!p.offloads()) return p.held.host_weights;
  const int64_t buffers = kHostTransfers * p.host_piece() * (p.host_wire_bytes() + p.element_bytes);
  return p.held.host_weights + p.held.host_masters + p.held.host_optimizer + buffers;
}

int64_t HostKept(const Problem& p, const ExecutionPlan& run, int64_t layer) {
  if (layer >= run.kept_on_host || run.InputFrom(layer) != layer) return 0;
  return MicroBatchTokens(p, run) *
         p.blocks[layer].hostable[static_cast<size_t>(run.LevelOf(layer))];
}

int64_t PeakMemory::resident() const {
  return weights + quantized_weights + kept_copies + scratch_slots + trained_weights + gradients +
         optimizer + fixed;
}

int64_t PeakMemory::allocated() const {
  return resident() + activations + transients + attention_workspace + logits + communication +
         graphs;
}

bool MayRecord(const Problem& p, const ExecutionPlan& run) {
  const bool whole =
      !p.shards_weights() && !p.scatters_gradients() && !p.offloads() && !p.streams();
  const bool copies = p.expands_blocks() || p.job.fp8_copies();
  const bool kept = !copies || run.kept == p.shape.layers;
  // The layers' own inputs are made anew for each micro-batch. How many rows an expert gets and
  // which chunks a gated DeltaNet's documents have differ between micro-batches of one shape.
  const bool inputs = p.shape.layer_input > 0;
  const bool experts = p.shape.HasExperts();
  const bool deltas = p.shape.delta.value_heads > 0;
  const bool drops = !p.job.full_finetune() && p.job.lora.dropout > 0;
  const bool fast_attention = p.element_bytes == 2 && p.shape.head_dim % 8 == 0 &&
                              p.shape.LargestHead() <= kLargestFusedHead;
  const bool shares =
      p.job.parallelism.context_parallel_size > 1 || p.job.parallelism.tensor_parallel_size > 1;
  return whole && kept && !shares && run.kept_on_host == 0 && run.input_every == 1 && !drops &&
         !inputs && !experts && !deltas && fast_attention;
}

int64_t MicroBatchTokens(const Problem& p, const ExecutionPlan& run) {
  const int64_t tokens = p.TokensOf(run.rows);
  return run.graphs ? RoundTokens(tokens) : tokens;
}

int64_t LogitsRows(const Problem& p, const ExecutionPlan& run) {
  return std::min(run.LogitsRows(p.shape.vocab), p.HeadTokens(run.rows));
}

std::vector<int64_t> RowOptions(const Problem& p) {
  const int64_t given = p.job.hyperparameters.per_device_batch;
  const int64_t whole = given == 0 ? RankRows(p.job) : given;
  const int64_t widest = p.shape.WidestRow();
  std::vector<int64_t> options;
  const int64_t most = std::max<int64_t>(1, kMostTokens / p.TokensOf(1));
  for (int64_t rows = std::min(whole, most); rows >= 1; --rows) {
    if (whole % rows != 0) continue;
    const bool usable = p.TokensOf(rows) * widest < kMostElements;
    if (usable || rows == 1) options.push_back(rows);
  }
  return options;
}

PeakMemory PredictMemory(const Problem& problem, const ExecutionPlan& run) {
  PeakMemory memory;
  memory.quantized_weights = problem.held.quantized_weights;
  memory.weights = problem.held.frozen_weights - memory.quantized_weights;
  memory.trained_weights = problem.held.trained_weights + problem.held.master_weights;
  memory.gradients = problem.held.gradients;
  memory.optimizer = problem.held.optimizer;
  if (run.embedding_on_host) memory.weights -= problem.head_elements * problem.element_bytes;
  AddScratch(problem, run, &memory);
  const int64_t tokens = MicroBatchTokens(problem, run);
  memory.fixed = kLibraryWorkspace + tokens * (RopeTableBytes(problem.shape) + 32);
  if (UsesDora(problem.job)) memory.fixed += kNormBuffers * kNormElements * kGradientBytes;
  memory.host = HostBytes(problem);
  for (int64_t layer = 0; layer < run.kept_on_host; ++layer) {
    memory.host_activations += HostKept(problem, run, layer);
  }
  if (problem.offloads() && problem.host_wire_bytes() != kGradientBytes) {
    memory.fixed += problem.host_piece() * problem.host_wire_bytes();
  }
  const Moments moments = MomentsOf(problem, run);
  const Moment moment = moments.Worst();
  if (run.graphs) memory.graphs = GraphBytes(problem, run, moments, tokens);
  memory.activations = moment.activations;
  memory.transients += moment.transients;
  memory.attention_workspace = moment.workspace;
  memory.logits = moment.logits;
  memory.communication += moment.communication;
  const double slack = problem.job.fp8() ? kSlackOfFp8Step : kSlackOfStep;
  memory.allocator_slack =
      kSlack + static_cast<int64_t>(slack * static_cast<double>(moment.total()));
  return memory;
}

int64_t MostCarried(const Problem& p, const ExecutionPlan& run) {
  if (!p.expands_blocks() || p.job.fp8()) return 0;
  const Moments moments = MomentsOf(p, run);
  const auto peak = static_cast<double>(moments.Worst().total());
  const auto worst = static_cast<int64_t>(peak * (1 - kCarriedLeaves));
  const int64_t copy = p.MostMatrixElements() * p.element_bytes;
  const int64_t ahead = run.prefetch ? 1 : 0;
  int64_t most = p.shape.layers - run.kept;
  // With `most` blocks, those from `layer` on are held in block layer's backward, and `ahead` more.
  for (int64_t layer = 0; layer < std::min(most + ahead, p.shape.layers); ++layer) {
    const int64_t room = worst - moments.blocks[layer].total();
    most = std::min(most, layer - ahead + room / copy);
  }
  return std::max<int64_t>(most, 0);
}

std::vector<MemoryItem> Items(const PeakMemory& m) {
  // A backward may have freed more than it allocated by its peak.
  const int64_t freed = std::min<int64_t>(0, m.transients);
  std::vector<MemoryItem> items;
  const std::pair<const char*, int64_t> all[] = {{"weights", m.weights},
                                                 {"quantised weights", m.quantized_weights},
                                                 {"kept copies", m.kept_copies},
                                                 {"scratch slots", m.scratch_slots},
                                                 {"trained weights", m.trained_weights},
                                                 {"gradients", m.gradients},
                                                 {"optimizer", m.optimizer},
                                                 {"activations", m.activations + freed},
                                                 {"transients", m.transients - freed},
                                                 {"attention workspace", m.attention_workspace},
                                                 {"logits", m.logits},
                                                 {"communication", m.communication},
                                                 {"recorded blocks", m.graphs},
                                                 {"fixed", m.fixed},
                                                 {"allocator slack", m.allocator_slack}};
  for (const auto& [category, bytes] : all) {
    if (bytes != 0) items.push_back({category, bytes});
  }
  return items;
}

}  // namespace sft::plan
