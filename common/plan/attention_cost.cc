#include "common/plan/attention_cost.h"

#include <algorithm>

#include "common/base/round.h"
#include "common/plan/attention_calls.h"

namespace sft::plan {
namespace {

constexpr int64_t kLseBytes = 4;

// Measured on one H100 (docs/engine.md, docs/benchmarks/families.md).
constexpr double kHalfForward = 450;  // tokens of a document at which it reaches half of its rate
constexpr double kHalfBackward = 530;
constexpr double kAnyOrder = 1.08;    // backward in any order, relative to a fixed one
constexpr double kSlabs = 0.9;        // speed in slabs, relative to one call
constexpr double kWindowSlabs = 0.7;  // of a window's slabs, which write parts of dk and dv
// In long documents, relative to a fixed order by cuDNN, and the tokens at which they reach half of
// that (docs/benchmarks/qlora.md, "Long documents").
constexpr double kTurns = 1.28, kHalfTurns = 1900;
constexpr double kLongAnyOrder = 1.4, kHalfAnyOrder = 1000;
constexpr double kSmallTurns = 1.11;   // heads of 64 in turns, relative to one call
constexpr double kWindowTurns = 1.08;  // in turns, where a window leaves all keys as much to do

// Heads up to 64, relative to those of 128; measured on an H200.
constexpr int64_t kSmallHead = 64;
constexpr double kSmallHeadsForward = 0.8;
constexpr double kSmallHeadsBackward = 0.7;
// Heads above 128, relative to those; measured on an H100 with heads of 256.
constexpr int64_t kLargestHead = 128;
constexpr double kLargeHeadsForward = 0.9;
constexpr double kLargeHeadsBackward = 0.75;
// FlashAttention-2 on Hopper, relative to a GPU's rates, which are cuDNN's: the backward in a fixed
// order as measured on an H200 (docs/benchmarks/qlora.md, "Long documents"), the forward as in
// worker/engine/cuda/cudnn_attention.h.
constexpr double kFlashForward = 1 / 1.8, kFlashBackward = 0.45;
// Heads beyond kLargestFusedHead are products in fp32; not measured.
constexpr double kPlainHeads = 0.05;

// The rate of the gated delta rule's products, which are small, relative to those of linears;
// about what was measured on an H200 (docs/benchmarks/mixtures.md).
constexpr double kDeltaProducts = 0.1;

BackwardHeads HeadsOf(const ModelShape& s, int64_t layer, bool deterministic) {
  const LayerShape shape = s.Layer(layer);
  return {shape.kv_heads, s.heads / shape.kv_heads, shape.head_dim, deterministic};
}

// Workspace of the backward in a window's slabs: cuDNN's own, what all slabs add to the gradients
// of keys and values of a call's heads, and the statistics by slabs.
int64_t WindowWorkspace(const BackwardHeads& heads, int64_t documents, int64_t length,
                        int64_t window) {
  const int64_t keys = kWindowSlab + WindowKeysBefore(window);
  const WindowCall call = WindowCallOf(heads, documents * CeilDiv(length, kWindowSlab), window);
  const int64_t parts = call.Planned() * keys * call.kv_heads * heads.head_dim * 2 * 2;
  const int64_t statistics =
      call.Planned() * kWindowSlab * heads.kv_heads * heads.group * kLseBytes;
  return call.slabs * call.kv_heads * heads.Workspace(kWindowSlab, keys) + parts + statistics;
}

// Workspace of attention's backward by cuDNN, in whole documents or in slabs.
int64_t CallsWorkspace(const BackwardHeads& heads, int64_t documents, int64_t length,
                       int64_t window) {
  if (heads.InWindowSlabs(length, window)) {
    return WindowWorkspace(heads, documents, length, window);
  }
  if (!heads.InSlabs(length)) {
    const BackwardCall call = CallOf(heads, documents, length);
    return call.documents * call.kv_heads * heads.Workspace(length, length);
  }
  const int64_t queries = SlabQueries(heads, length);
  const int64_t keys = MostSlabKeys(length, queries, window);
  // A slab's own dk and dv in bf16, their sums in fp32, and its statistics.
  const int64_t sums = length * heads.head_dim * 2 * (2 + 4);
  const int64_t statistics = heads.group * queries * kLseBytes;
  return SlabKeyHeads(heads, queries, keys) * (heads.Workspace(queries, keys) + sums + statistics);
}

// Work of one head in one document: the pairs of a query and a key that are gone over, and the
// speed relative to one call in a fixed order.
struct Work {
  double pairs = 0;
  double speed = 1;
};

// Pairs of slabs in a fixed order: all keys from a slab's first to each query.
double SlabPairs(const BackwardHeads& heads, int64_t length, int64_t window) {
  const int64_t queries = SlabQueries(heads, length);
  double pairs = 0;
  for (int64_t first = 0; first < length; first += queries) {
    const int64_t begin = SlabFirstKey(first, window);
    pairs += SeenPairs(std::min(first + queries, length) - begin, 0) - SeenPairs(first - begin, 0);
  }
  return pairs;
}

// The speed, relative to one call in a fixed order, of a kernel that is `rate` times as fast in
// very long documents and reaches half of its own rate at `half` tokens.
double LongShare(double rate, int64_t length, double half) {
  const double tokens = static_cast<double>(length);
  return rate * (tokens + kHalfBackward) / (tokens + half);
}

// As cudnn_attention.cc chooses. In a fixed order cuDNN goes over all keys before a query, window
// or not.
Work BackwardWork(const BackwardHeads& heads, int64_t length, int64_t window, const GpuRates& gpu) {
  const double seen = SeenPairs(length, window);
  if (heads.head_dim > kLargestFusedHead) return {seen};
  const bool is_long = window == 0 && length >= kTurnsLength;
  double order = heads.deterministic ? 1.0 : kAnyOrder;
  if (!gpu.cudnn_attention) return {seen, order};
  if (gpu.attention_in_turns && heads.InTurns(length, window)) {
    if (heads.head_dim == kTurnsSmallHead) return {seen, kSmallTurns};
    return {seen, window > 0 ? kWindowTurns : LongShare(kTurns, length, kHalfTurns)};
  }
  if (!heads.deterministic && is_long) order = LongShare(kLongAnyOrder, length, kHalfAnyOrder);
  if (heads.InWindowSlabs(length, window)) {
    const double keys = static_cast<double>(WindowKeysBefore(window)) + (kWindowSlab + 1) / 2.0;
    return {static_cast<double>(length) * keys, kWindowSlabs};
  }
  if (heads.InSlabs(length)) {
    if (!heads.deterministic) return {seen, order};
    return {SlabPairs(heads, length, window), kSlabs};
  }
  return {heads.deterministic ? SeenPairs(length, 0) : seen, order};
}

// The share of its rate that attention reaches where queries see so many keys: a document of
// `length` tokens without a window reaches length / (length + half).
double RampOf(double pairs, int64_t length, double half) {
  const double keys = 2 * pairs / static_cast<double>(length) - 1;
  return keys / (keys + half);
}

// Workspace of a gated DeltaNet's backward over so many chunks, the larger one of a CPU, which has
// all states in fp32, and of a GPU (worker/engine/cuda/kernels/delta_chunks.cu): what its kernels
// leave to each other, up to kDeltaWorkspace at a time, and the states between these.
int64_t DeltaWorkspace(const DeltaShape& delta, int64_t chunks) {
  const int64_t rows = kDeltaChunk * delta.key_size * 2, scores = kDeltaChunk * kDeltaChunk * 2;
  const int64_t factors = 2 * kDeltaChunk * 4, state = delta.values() * delta.key_size;
  const int64_t slot = delta.key_heads * (2 * rows + factors) +
                       delta.value_heads * (4 * rows + 2 * scores + factors) + 2 * state * 2;
  const int64_t parts = CeilDiv(chunks * slot, kDeltaWorkspace);
  const int64_t on_gpu = std::min(kDeltaWorkspace, chunks * slot) + (parts + 3) * state * 4;
  return std::max(chunks * state * 4, on_gpu);
}

}  // namespace

double DeltaFlops(const DeltaShape& delta) {
  const auto key = static_cast<double>(delta.key_size);
  const auto value = static_cast<double>(delta.value_size);
  return static_cast<double>(delta.value_heads) *
         (static_cast<double>(kDeltaChunk) * (5 * key + 3 * value) + 6 * key * value);
}

// The larger one, since not all GPUs take turns.
int64_t AttentionWorkspace(const ModelShape& s, int64_t layer, int64_t documents, int64_t length,
                           bool deterministic) {
  if (s.Layer(layer).delta) {
    return DeltaWorkspace(s.delta, documents * CeilDiv(length, kDeltaChunk));
  }
  const BackwardHeads heads = HeadsOf(s, layer, deterministic);
  if (heads.head_dim > kLargestFusedHead) return PlainWorkspace(heads, length);
  const int64_t window = s.Window(layer) < length ? s.Window(layer) : 0;
  const int64_t turns =
      heads.InTurns(length, window) ? heads.TurnsWorkspace(documents * length) : 0;
  return std::max(turns, CallsWorkspace(heads, documents, length, window));
}

// In a fixed order dq is summed once for each part of the keys, as many as keep the GPU busy; each
// query head has dk and dv of its own; and the results are copied.
int64_t FlashWorkspace(const ModelShape& s, int64_t layer, int64_t queries, int64_t keys,
                       bool deterministic) {
  constexpr int64_t kProcessors = 132;
  const BackwardHeads heads = HeadsOf(s, layer, deterministic);
  if (heads.head_dim > kLargestFusedHead) return PlainWorkspace(heads, keys);
  const int64_t all = heads.kv_heads * heads.group;
  const int64_t sums = deterministic ? CeilDiv(kProcessors, all) : 1;
  const int64_t own = heads.group > 1 ? 2 * keys * all * 2 : 0;
  const int64_t results = (queries * all + 2 * keys * heads.kv_heads) * 2;
  return (sums * queries * all * 4 + own + results) * heads.head_dim;
}

GpuRates WithFlashAttention(const ModelShape& s, int64_t layer, GpuRates gpu) {
  if (!gpu.cudnn_attention || s.Layer(layer).head_dim > kLargestFusedHead) return gpu;
  gpu.attention_forward *= kFlashForward;
  gpu.attention_backward *= kFlashBackward;
  gpu.cudnn_attention = gpu.attention_in_turns = false;
  return gpu;
}

AttentionSeconds PredictAttention(const ModelShape& s, int64_t layer, double tokens, int64_t length,
                                  bool deterministic, const GpuRates& gpu) {
  if (s.Layer(layer).delta) {
    const double seconds = tokens * DeltaFlops(s.delta) / (gpu.gemm * kDeltaProducts);
    return {seconds, kDeltaBackward * seconds};
  }
  const BackwardHeads heads = HeadsOf(s, layer, deterministic);
  const int64_t window = s.Window(layer) < length ? s.Window(layer) : 0;
  double forward = gpu.attention_forward, backward = gpu.attention_backward;
  if (heads.head_dim > kLargestFusedHead) {
    forward *= kPlainHeads;
    backward *= kPlainHeads;
  } else if (heads.head_dim > kLargestHead) {
    forward *= kLargeHeadsForward;
    backward *= kLargeHeadsBackward;
  } else if (heads.head_dim <= kSmallHead) {
    forward *= kSmallHeadsForward;
    backward *= kSmallHeadsBackward;
  }
  const double documents = tokens / static_cast<double>(length);
  const double width = static_cast<double>(s.heads * heads.head_dim);
  const double seen = SeenPairs(length, window);
  const Work work = BackwardWork(heads, length, window, gpu);
  return {4 * seen * documents * width / (forward * RampOf(seen, length, kHalfForward)),
          10 * work.pairs * documents * width /
              (backward * work.speed * RampOf(work.pairs, length, kHalfBackward))};
}

}  // namespace sft::plan
