#include "common/plan/step_time.h"

#include <algorithm>
#include <vector>

#include "common/plan/attention_cost.h"

namespace sft::plan {
namespace {

// Measured on one H100 (docs/engine.md).
constexpr double kElementwise = 0.92;  // fraction of a copy
constexpr double kAdapterReads = 0.88;
constexpr double kHalfProducts = 150;  // tokens at which products reach half of their rate
// Rows an expert at which the products of all experts reach half of that. Measured on one H200
// (docs/benchmarks/mixtures.md); in FP8 an estimate, since what stands around a tile's sum takes as
// long as in bf16.
constexpr double kHalfExpert = 100, kHalfExpertFp8 = 250;
// For choosing experts, sorting rows by them and the gaps between these small kernels: a layer and
// tile with experts, forward and backward. The same on an H200 for 32 experts, 4 of them a token's,
// and for 128 and 8 (docs/benchmarks/mixtures.md).
constexpr double kRouting = 0.7e-3;
// The rate of the gradients of trained stacks, which are made expert by expert, relative to that of
// other products; from what they took of a step on four H200s.
constexpr double kStackGradients = 0.36;
// Share of de-quantising not hidden by products. Of stacks nothing is.
constexpr double kVisibleWeights = 0.6;
constexpr double kVisibleExchange = 0.2;  // share of gathering and reducing not hidden by products
constexpr double kHostRead = 25e9;        // bytes per second of rows read from host memory
// Memory traffic of AdamW's loops for a rank on a node with 16 cores, and a bus of 16 lanes each
// way; not measured.
constexpr double kHostMemory = 100e9;
constexpr double kHostBus = 50e9;
// Bytes per second that a GPU sends to other nodes, over a card of its own of 400 Gb/s; not
// measured.
constexpr double kNetwork = 45e9;
constexpr double kLaunch = 4.5e-6;
constexpr double kLaunchesPerBlock = 100;  // per micro-batch
constexpr double kLaunchesPerTile = 35;    // of these, for each tile of its feed-forward layer
// Fraction of the device's time within which the host's launches stay hidden: kernels between the
// products are shorter than a launch. Not measured.
constexpr double kUnseenLaunches = 0.7;
constexpr double kGap = 0.7e-6;    // seconds between two kernels, recorded or not
constexpr double kLossPasses = 3;  // passes over the logits
// Seconds in which the host has launched a block's forward and backward where ranks pass messages
// and nothing is recorded: Qwen3-0.6B took 1.5 ms in two stages, and 1.2 in two of two pieces
// (docs/benchmarks/splits.md).
constexpr double kHostOfBlock = 1.4e-3;
// A collective of a block: the seconds until it begins and the computation goes on, where nothing
// runs beside it, and those of the host; the host also lays out the rows that ranks pass each
// other which share matrices. From Qwen3-32B's and 1.7B's steps on two H200s
// (docs/benchmarks/splits.md).
constexpr double kWaitOfCall = 80e-6, kHostOfCall = 100e-6, kHostOfMatrixCall = 160e-6;
constexpr double kSeenCalls = 0.5;  // share of kWaitOfCall where something runs beside it

double Ramp(double n, double half) { return n / (n + half); }

double Bytes(int64_t per_token, double tokens) { return static_cast<double>(per_token) * tokens; }

// Rates at which the products of the head and of blocks, and memory, are worked through.
struct Rates {
  double head, blocks, weight_gradients, elementwise, adapters;
};

// The sum over blocks of what `get` takes of a block's cost.
template <typename Get>
int64_t SumOver(const Problem& p, const Get& get) {
  int64_t sum = 0;
  for (const BlockCost& block : p.blocks) sum += get(block);
  return sum;
}

// A product with the stacks of all experts runs at m / (m + half) of the rate of others,
// where m is the mean of rows an expert. So it takes as long as if each expert had `half` rows
// more: this adds those to `weights`, which count for each token. `stacks`: as often as they are
// multiplied with, once a tile.
double WithStacks(const Problem& p, double weights, int64_t stacks) {
  return weights + (p.job.fp8() ? kHalfExpertFp8 : kHalfExpert) * static_cast<double>(stacks);
}

Rates RatesAt(const Problem& p, const ExecutionPlan& run, const GpuRates& gpu) {
  const double gemm = gpu.gemm * Ramp(static_cast<double>(p.TokensOf(run.rows)), kHalfProducts);
  const double fp8 = gpu.gemm_fp8 > 0 ? gemm * gpu.gemm_fp8 / gpu.gemm : gemm;
  return {gpu.gemm * Ramp(static_cast<double>(LogitsRows(p, run)), kHalfProducts),
          p.job.fp8() ? fp8 : gemm, p.job.fp8_weight_gradients() ? fp8 : gemm,
          gpu.copy * kElementwise, gpu.copy * kAdapterReads};
}

// The rate between so many ranks next to each other, of those that share matrices one.
double BusOf(const Problem& p, const GpuRates& gpu, int64_t ranks) {
  const bool in_node = ranks * p.matrix_ranks() <= p.job.compute.gpus_per_node;
  return in_node ? gpu.bus : std::min(gpu.bus, kNetwork);
}

// Seconds to read and write a block's weights for one pass over it.
double WeightSeconds(const Problem& p, const GpuRates& gpu, bool prefetch, double compute_seconds) {
  const double weights =
      static_cast<double>(SumOver(p, [](const BlockCost& b) { return b.held_weights; })) /
      static_cast<double>(p.shape.layers);
  double seconds = 0;
  double gathered = weights * static_cast<double>(p.element_bytes);
  const double layers = static_cast<double>(p.shape.layers);
  if (p.expands_blocks()) {
    const double bytes = static_cast<double>(p.ExpandedFrom()) / layers;
    gathered = bytes * static_cast<double>(p.parts().weights);
    double written = weights * (p.job.fp8() ? 1.0 : static_cast<double>(p.element_bytes));
    const double stacks =
        static_cast<double>(SumOver(p, [](const BlockCost& b) { return b.stacks; }));
    // Stacks pass through bf16, and are turned in it for the backward.
    if (p.job.fp8()) written += 3.0 * stacks / layers * static_cast<double>(p.element_bytes);
    const double of_stacks = stacks / layers / weights;
    const double visible = prefetch ? kVisibleWeights : 1.0;
    seconds +=
        (gathered + written) / gpu.copy * (visible * (1.0 - of_stacks) + of_stacks / kElementwise);
  }
  if (p.streams()) {
    const double bus = static_cast<double>(p.held.host_weights) / layers / kHostBus;
    seconds += std::max(0.0, bus - compute_seconds);  // bytes, with and without prefetch
  }
  if (p.parts().weights > 1) {
    const double ranks = static_cast<double>(p.parts().weights);
    const double gather = gathered * (ranks - 1) / ranks / BusOf(p, gpu, p.parts().weights);
    seconds += std::max(kVisibleExchange * gather, gather - compute_seconds);
  }
  return seconds;
}

// Seconds of copying the trained weights of `blocks` blocks to FP8, once: they are read for the
// scale of each row, and twice for that of each column, and written both ways.
double Fp8CopySeconds(const Problem& p, const GpuRates& gpu, int64_t blocks) {
  if (!p.job.fp8_copies()) return 0;
  const double elements =
      static_cast<double>(SumOver(p, [](const BlockCost& b) { return b.held_weights; })) *
      static_cast<double>(blocks) / static_cast<double>(p.shape.layers);
  return elements * static_cast<double>(3 * p.element_bytes + 2) / (gpu.copy * kElementwise);
}

// Seconds of gathering or reducing `bytes` over some ranks: each sends all but its own part.
double RingSeconds(double bytes, int64_t ranks, double bus) {
  return bytes * static_cast<double>(ranks - 1) / static_cast<double>(ranks) / bus;
}

// Seconds per step to exchange the gradients, and the weights of which a sharded optimizer updated
// a part.
double ExchangeSeconds(const Problem& p, const ExecutionPlan& run, const GpuRates& gpu,
                       double trained) {
  const ShardParts parts = p.parts();
  const double fp32 = trained * 4, bus = BusOf(p, gpu, p.ranks());
  double seconds = 0;
  if (p.scatters_gradients()) {
    const double sent = trained * static_cast<double>(p.wire_bytes() * run.micro_batches);
    seconds +=
        kVisibleExchange * RingSeconds(sent, parts.gradients, BusOf(p, gpu, parts.gradients));
    // A rank's part is summed over its replicas.
    const double own = fp32 / static_cast<double>(parts.gradients);
    seconds += kVisibleExchange * 2 * RingSeconds(own, p.ranks() / parts.gradients, bus);
  } else {
    const double sums = parts.states > 1 ? 1 : 2;  // passes: reduce-scatter, all-reduce
    seconds += kVisibleExchange * sums * RingSeconds(fp32, p.ranks(), bus);
  }
  if (p.shares_whole_weights()) {
    seconds += RingSeconds(trained * static_cast<double>(p.element_bytes), parts.states, bus);
  }
  return seconds;
}

// Seconds of the host's update of masters and states. It overlaps the first forward of the next
// step where that takes the weights unit by unit.
double HostSeconds(const Problem& p, double own, double forward_seconds) {
  const double sent = own * static_cast<double>(p.host_wire_bytes() + p.element_bytes);
  const double moved =
      2 * static_cast<double>(p.held.host_masters + p.held.host_optimizer) + 2 * sent;
  const double seconds = std::max(moved / kHostMemory, sent / 2 / kHostBus);
  return p.shares_whole_weights() ? seconds : std::max(0.0, seconds - forward_seconds);
}

double OptimizerSeconds(const Problem& p, const ExecutionPlan& run, const GpuRates& gpu,
                        double forward_seconds) {
  double trained = 0;
  for (int64_t elements : p.trained) trained += static_cast<double>(elements);
  const ShardParts parts = p.parts();
  const double own = trained / static_cast<double>(parts.states);
  // Gradients are zeroed, read for the norm and for the update; states and masters are read and
  // written.
  const double bytes = trained / static_cast<double>(parts.gradients) * 4 + own * 2 * 4 +
                       2 * static_cast<double>(p.held.optimizer + p.held.master_weights) +
                       own * static_cast<double>(p.element_bytes);
  const double host = p.offloads() ? HostSeconds(p, own, forward_seconds) : 0;
  return bytes / (gpu.copy * kElementwise) + ExchangeSeconds(p, run, gpu, trained) + host;
}

// Seconds of each block's attention, with the exchange of tokens and heads that nothing hides.
// `tokens` of a rank. Layers that are alike are worked out once.
std::vector<AttentionSeconds> AttentionOf(const Problem& p, double tokens, const GpuRates& gpu) {
  const int64_t ranks = p.job.parallelism.context_parallel_size;
  std::vector<AttentionSeconds> seconds;
  for (int64_t layer = 0; layer < p.shape.layers; ++layer) {
    if (layer > 0 && p.shape.SameAttention(layer, layer - 1)) {
      seconds.push_back(seconds.back());
      continue;
    }
    // A rank attends with its heads from all tokens of its node.
    const int64_t nodes = p.job.context_nodes();
    AttentionSeconds block = PredictAttention(
        p.attention, layer, tokens * static_cast<double>(ranks / nodes), p.row_tokens,
        p.job.training.deterministic, nodes == 1 ? gpu : WithFlashAttention(p.shape, layer, gpu));
    if (const int64_t gathered = GatheredOf(p.shape, layer, p.job); gathered > 0) {
      const double once = RingSeconds(Bytes(gathered * p.element_bytes, tokens), nodes,
                                      std::min(gpu.bus, kNetwork));
      block.forward += once;
      block.backward += 2 * once;  // once more, and the gradients
    }
    if (ranks > nodes) {
      const ExchangedElements exchanged = ExchangedOf(p.shape, layer, p.job);
      const auto of = [&](int64_t elements) {
        return RingSeconds(Bytes(elements * p.element_bytes, tokens), ranks / nodes, gpu.bus);
      };
      block.forward += of(exchanged.forward());
      block.backward += of(exchanged.backward());
    }
    seconds.push_back(block);
  }
  return seconds;
}

// Seconds in which the ranks that share matrices pass each other the tokens of a micro-batch.
double MatrixExchangeSeconds(const Problem& p, const ExecutionPlan& run, double tokens,
                             const GpuRates& gpu) {
  const int64_t ranks = p.matrix_ranks(), layers = p.shape.layers;
  if (ranks == 1) return 0;
  double elements = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const TensorExchange& exchange = p.exchange[static_cast<size_t>(layer)];
    const auto level = static_cast<size_t>(run.LevelOf(layer));
    int64_t of_layer = exchange.forward + exchange.backward + exchange.again[level];
    if (run.RunsAgain(layer, layers)) of_layer += exchange.forward;
    elements += Bytes(of_layer, tokens);
  }
  return RingSeconds(elements * static_cast<double>(p.element_bytes), ranks, gpu.bus);
}

// Codes, their scales, and the scales of these.
double PartsOfWeights(const spec::JobSpec& job) {
  if (!job.qlora() || job.quantization.bits != 4) return 1;
  return job.quantization.double_quant ? 3 : 2;
}

// The collectives of a micro-batch's blocks: those of ranks that share matrices and of ranks that
// share rows, which the computation waits for, and those that bring weights and take gradients
// beside it.
struct Calls {
  double matrices = 0, rows = 0, weights = 0;
  double all() const { return matrices + rows + weights; }
};
Calls CallsOf(const Problem& p, const ExecutionPlan& run) {
  Calls calls;
  const int64_t nodes = p.job.context_nodes();
  for (int64_t layer = 0; layer < p.shape.layers; ++layer) {
    const Recompute level = run.LevelOf(layer);
    const double again = run.RunsAgain(layer, p.shape.layers) ? 1 : 0;
    if (p.matrix_ranks() > 1) {
      const TensorExchange& exchange = p.exchange[static_cast<size_t>(layer)];
      const auto repeated = static_cast<double>(exchange.again[static_cast<size_t>(level)]);
      calls.matrices += 8 + 4 * (repeated / static_cast<double>(exchange.forward) + again);
    }
    const double forwards = 1 + again + (level == Recompute::kAll ? 1 : 0);
    if (p.job.parallelism.context_parallel_size > nodes) calls.rows += 4 + 2 * forwards;
    if (nodes > 1) calls.rows += 2 + forwards;
    if (p.parts().weights == 1) continue;
    // Trained weights forward and backward, and their gradients; with adapters also frozen norms.
    // What blocks are expanded from comes in so many parts, each gathered by itself.
    const bool kept = p.expands_blocks() && layer >= p.shape.layers - run.kept;
    calls.weights += p.job.full_finetune() ? 3 : 5 + (kept ? 0 : 2 * PartsOfWeights(p.job));
  }
  return calls;
}

// Seconds in which they sum the gradients of what several of them have, once a step.
double SharedGradientSeconds(const Problem& p, const GpuRates& gpu) {
  const double bytes = 4 / static_cast<double>(p.parts().states);
  double seconds = 0;
  for (const auto& [sharers, elements] : p.shared) {
    seconds += 2 * RingSeconds(static_cast<double>(elements) * bytes, sharers, gpu.bus);
  }
  return seconds;
}

// The tiles in which a block's feed-forward layer takes a micro-batch.
int64_t TilesOf(const Problem& p, const ExecutionPlan& run, int64_t layer) {
  return run.TilesOf(run.LevelOf(layer), MicroBatchTokens(p, run));
}

// Seconds that the gradients of trained stacks take beyond what other products would.
double StackGradientSeconds(const Problem& p, double tokens, double rate) {
  double passed = 0;  // elements of the stacks that a token is multiplied with
  for (int64_t layer = 0; layer < p.shape.layers; ++layer) {
    const LayerShape shape = p.shape.Layer(layer);
    if (shape.experts == 0) continue;
    passed += static_cast<double>(p.blocks[layer].stacks / shape.experts * shape.chosen);
  }
  return 2 * passed * tokens * (1.0 / kStackGradients - 1.0) / rate;
}

// Passes over the logits, those that cap them and turn their gradient included.
double LossPasses(const Problem& p) {
  constexpr double kCapPasses = 8;
  return kLossPasses + (p.shape.logit_cap > 0 ? kCapPasses : 0);
}

}  // namespace

double StepTime::total() const {
  return products + attention + elementwise + adapters + weights + recompute + optimizer +
         launches + exchange;
}

MicroBatchTime PredictMicroBatch(const Problem& p, const ExecutionPlan& run, const GpuRates& gpu) {
  const double tokens = static_cast<double>(MicroBatchTokens(p, run));  // padding included
  const double rows = static_cast<double>(p.HeadTokens(run.rows));
  const double layers = static_cast<double>(p.shape.layers);
  const bool full = p.job.full_finetune();
  const Rates rates = RatesAt(p, run, gpu);
  const auto sum = [&](const auto& get) { return Bytes(SumOver(p, get), tokens); };

  // One product in the forward, one for the gradient of the input, one for that of a trained
  // weight.
  int64_t stacks = 0;
  for (int64_t layer = 0; layer < p.shape.layers; ++layer) {
    stacks += p.blocks[layer].stacks * TilesOf(p, run, layer);
  }
  const double flops = 2 * WithStacks(p, sum([](const BlockCost& b) { return b.weights; }), stacks);
  const double products = flops / rates.blocks;
  const std::vector<AttentionSeconds> of_blocks = AttentionOf(p, tokens, gpu);
  StepTime time;
  double attention = 0;  // of the forward
  for (const AttentionSeconds& block : of_blocks) {
    attention += block.forward;
    time.attention += block.forward + block.backward;
  }
  const double head_passes = p.trains_head() ? 3 : 2;
  time.products = 2 * products + 2 * head_passes * Bytes(p.head_elements, rows) / rates.head;
  if (full) {
    time.products +=
        flops / rates.weight_gradients + StackGradientSeconds(p, tokens, rates.weight_gradients);
  }
  // The layers' own inputs are made of frozen weights by one product.
  const int64_t inputs = p.shape.layers * p.shape.layer_input * p.shape.hidden;
  time.products += 2 * (full ? 3 : 1) * Bytes(inputs, tokens) / rates.blocks;
  const int64_t logits_row = p.head_elements > 0 ? p.shape.vocab * p.element_bytes : 0;
  const double logits = Bytes(logits_row, rows);
  time.elementwise = (sum([](const BlockCost& b) { return b.elementwise; }) +
                      LossPasses(p) * logits + 8 * Bytes(p.hidden_row(), tokens)) /
                     rates.elementwise;
  time.adapters = sum([](const BlockCost& b) { return b.adapters; }) / rates.adapters;
  // Forward and backward alike. Only blocks that are expanded have kept and carried copies. Blocks
  // that run again take theirs once more.
  int64_t again = 0;
  for (int64_t layer = 0; layer < p.shape.layers - run.kept; ++layer) {
    again += run.RunsAgain(layer, p.shape.layers) ? 1 : 0;
  }
  const double sources = 2 * layers - static_cast<double>(2 * run.kept + run.carried - again);
  const double block_forward = (products + attention) / layers;
  time.weights = sources * WeightSeconds(p, gpu, run.prefetch, block_forward);
  // Those that are not kept, in each micro-batch.
  time.weights += Fp8CopySeconds(p, gpu, p.shape.layers - run.kept);
  if (run.embedding_on_host) time.weights += Bytes(p.hidden_row(), tokens) / kHostRead;
  double tiles = 0, routed = 0;
  for (int64_t layer = 0; layer < p.shape.layers; ++layer) {
    const auto level = static_cast<size_t>(run.LevelOf(layer));
    const BlockCost& block = p.blocks[layer];
    const int64_t of_layer = TilesOf(p, run, layer);
    time.recompute +=
        Bytes(block.elementwise_again[level], tokens) / rates.elementwise +
        Bytes(block.adapters_again[level], tokens) / rates.adapters +
        2 *
            WithStacks(p, Bytes(block.weights_again[level], tokens),
                       of_layer * block.stacks_again[level]) /
            rates.blocks +
        (level == static_cast<size_t>(Recompute::kAll) ? of_blocks[layer].forward : 0);
    if (run.RunsAgain(layer, p.shape.layers)) {
      time.recompute +=
          Bytes(block.elementwise_again[level], tokens) / rates.elementwise +
          2 * WithStacks(p, Bytes(block.weights, tokens), of_layer * block.stacks) / rates.blocks +
          of_blocks[layer].forward;
    }
    // What goes to the host and comes back passes the GPU's memory, and is seen where the bus takes
    // longer than a block's forward.
    const double kept = static_cast<double>(HostKept(p, run, layer));
    const double waited =
        std::max(0.0, kept / kHostBus - products / layers - of_blocks[layer].forward);
    time.recompute += 2 * (kept / gpu.copy + waited);
    tiles += static_cast<double>(of_layer - 1);
    if (block.stacks > 0) routed += static_cast<double>(of_layer);
  }
  const Calls calls = CallsOf(p, run);
  time.exchange = MatrixExchangeSeconds(p, run, tokens, gpu) + calls.matrices * kWaitOfCall;
  time.attention += calls.rows * kWaitOfCall;
  time.weights += kSeenCalls * calls.weights * kWaitOfCall;
  const double device = time.total();
  const double launches = layers * kLaunchesPerBlock + tiles * kLaunchesPerTile;
  // A recorded block is one launch.
  const double host = run.graphs ? 0 : launches * kLaunch;
  time.launches =
      launches * kGap + routed * kRouting + std::max(0.0, host - kUnseenLaunches * device);
  const double of_calls =
      (calls.rows + calls.weights) * kHostOfCall + calls.matrices * kHostOfMatrixCall;
  return {time, products + attention, of_calls};
}

double LaunchSeconds(const StepTime& time, int64_t blocks, double calls) {
  const double device = time.total() - time.launches;
  const double once = device - time.recompute;
  return static_cast<double>(blocks) * kHostOfBlock * (once > 0 ? device / once : 1) + calls;
}

StepTime PredictTime(const Problem& p, const ExecutionPlan& run, const GpuRates& gpu) {
  auto [time, forward, calls] = PredictMicroBatch(p, run, gpu);
  if (calls > 0) {
    const double device = time.total() - time.launches;
    time.launches = std::max(time.launches, LaunchSeconds(time, p.shape.layers, calls) - device);
  }
  const double micro_batches = static_cast<double>(run.micro_batches);
  for (double* part : {&time.products, &time.attention, &time.elementwise, &time.adapters,
                       &time.weights, &time.recompute, &time.launches, &time.exchange}) {
    *part *= micro_batches;
  }
  time.exchange += SharedGradientSeconds(p, gpu);
  if (UsesDora(p.job)) {
    // Norms of rows, once a step: the weights are read, summed up and read again in fp32.
    const int64_t weights =
        SumOver(p, [](const BlockCost& b) { return b.held_weights - b.stacks; });
    time.weights += Bytes(weights, static_cast<double>(p.element_bytes + 3 * 4)) /
                    RatesAt(p, run, gpu).elementwise;
  }
  time.weights += Fp8CopySeconds(p, gpu, run.kept);
  time.optimizer = OptimizerSeconds(p, run, gpu, forward);
  time.launches += kStepOverhead;
  return time;
}

}  // namespace sft::plan
