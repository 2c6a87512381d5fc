#include "common/plan/block.h"

#include <algorithm>

#include "common/base/round.h"
#include "common/plan/attention_calls.h"
#include "common/plan/tensors.h"

namespace sft::plan {
namespace {

constexpr int64_t kStatisticBytes = 4;

constexpr int Index(Recompute level) { return static_cast<int>(level); }

// Bytes of each tensor of a block for one token.
struct Rows {
  int64_t hidden, input_normed, middle_normed, qkv, heads, attended, gate_up, activated, lse;
  int64_t attention_xa, gate_up_xa, down_xa;
};

// Costs of FP8 products, whose inputs take one byte per element. The norms, gates and the norms'
// backward write these inputs with their output; the others are converted from tensors that are
// read again for it.
void AddFp8(const BlockMatrices& m, int64_t e, BlockCost* cost) {
  const int64_t read = e + 1;
  const int64_t inputs = m.qkv.columns + m.o.columns * read + m.gate_up.columns + m.down.columns;
  const int64_t outputs = m.qkv.rows * read + m.o.rows + m.gate_up.rows * read + m.down.rows;
  for (int level = 0; level < kRecomputeLevels; ++level) {
    cost->forward[level] += m.down.columns;
    cost->backward_mlp[level] += m.gate_up.rows;
    cost->backward_attention[level] += m.qkv.rows;
  }
  cost->elementwise += inputs + outputs;
  cost->elementwise_again[Index(Recompute::kMlp)] += m.gate_up.columns;
  cost->elementwise_again[Index(Recompute::kAll)] += inputs;
}

// Costs of DoRA's gains (nn/projection.h): the backward makes each output again, beside its scaled
// gradient; the forward scales outputs in a pass of its own.
void AddDora(const BlockMatrices& m, int64_t e, BlockCost* cost) {
  const BlockMatrices::Matrix* const matrices[] = {&m.qkv, &m.o, &m.gate_up, &m.down};
  const auto again = [&](const BlockMatrices::Matrix& a, const BlockMatrices::Matrix& b) {
    const auto bytes = [e](const BlockMatrices::Matrix& matrix) {
      return matrix.rank == 0 ? 0 : (matrix.rows + RowStride(matrix.rows, matrix.rank)) * e;
    };
    return std::max(bytes(a), bytes(b));
  };
  for (int level = 0; level < kRecomputeLevels; ++level) {
    cost->backward_mlp[level] += again(m.gate_up, m.down);
    cost->backward_attention[level] += again(m.qkv, m.o);
    for (const BlockMatrices::Matrix* matrix : matrices) {
      if (matrix->rank > 0) cost->weights_again[level] += matrix->weights();
    }
  }
  for (const BlockMatrices::Matrix* matrix : matrices) {
    if (matrix->rank > 0) cost->adapters += 7 * matrix->rows * e;
  }
}

// Bytes per token of the partial sums of GluFactorsBackward, which recomputes the product of
// SwiGLU in its one pass over the rows; 0 where it is not used (Mlp::MakesProductAgain, and
// the sizes that the CUDA kernel supports).
int64_t OnePassPartials(const LayerShape& layer, const spec::JobSpec& job, const BlockMatrices& m,
                        int64_t e) {
  const int64_t rank = m.down.rank;
  if (e != 2 || job.lora.dropout > 0 || UsesDora(job) || m.gate_up.rank != 2 * rank) return 0;
  if (rank != 16 && rank != 32) return 0;
  const int64_t strip = 4096 / rank;
  return layer.intermediate % strip == 0 ? layer.intermediate / strip * 2 * rank * 4 : 0;
}

// Bytes per token of the passes that biases and their gradients take (nn/projection.h). A bias is
// added in a pass over its output, but by the product where a linear has its matrix for itself and
// the product is not in FP8. Its gradient is a sum over that of the output, but where LayerNorm or
// an activation without a gate writes that and sums it on the way.
int64_t BiasBytes(const ModelShape& s, const BlockMatrices& m, const spec::JobSpec& job,
                  int64_t e) {
  const TensorNames& names = NamesOf(s);
  const bool fp8 = job.training.matmul == spec::Matmul::kFp8;
  const bool layer_norms = s.norm == NormKind::kLayerNorm;
  int64_t elements = 0;
  const auto add = [&](bool has, int64_t rows, bool alone, bool summed) {
    if (!has) return;
    if (!alone || fp8) elements += 2 * rows;
    if (job.full_finetune() && !(alone && summed)) elements += rows;
  };
  add(s.qkv_bias, m.qkv.rows, names.k == nullptr, false);
  add(s.output_bias, m.o.rows, true, layer_norms);
  add(s.mlp_bias, m.gate_up.rows, names.gate == nullptr || names.up == nullptr,
      names.gate == nullptr);
  add(s.mlp_bias, m.down.rows, true, layer_norms);
  return elements * e;
}

BackwardHeads HeadsOf(const ModelShape& s, const LayerShape& layer, bool deterministic) {
  return {layer.kv_heads, s.heads / layer.kv_heads, layer.head_dim, deterministic};
}

}  // namespace

bool UsesDora(const spec::JobSpec& job) { return !job.full_finetune() && job.lora.use_dora; }

namespace {

BlockCost CostOfBlock(const ModelShape& s, const LayerShape& layer, const BlockMatrices& m,
                      const spec::JobSpec& job, int64_t e) {
  const int64_t q = s.heads * layer.head_dim;
  // The block's own keys and values. Those it borrows are counted with the model (peak_memory.cc),
  // but the gradients that it makes of them here.
  const int64_t borrowed = layer.keys_of >= 0 ? layer.kv_heads * layer.head_dim : 0;
  const int64_t kv = borrowed > 0 ? 0 : layer.kv_heads * layer.head_dim;
  Rows r{};
  r.hidden = s.hidden * e;
  r.input_normed = RowStride(s.hidden, m.qkv.rank) * e;
  r.middle_normed = RowStride(s.hidden, m.gate_up.rank) * e;
  r.qkv = m.qkv.rows * e;
  r.heads = s.qk_norm != QkNorm::kNone ? (q + kv) * e : 0;
  if (s.value_norm && kv > 0) r.heads += kv * e + layer.kv_heads * kStatisticBytes;
  r.attended = RowStride(q, m.o.rank) * e;
  r.gate_up = RowStride(m.gate_up.rows, m.gate_up.rank) * e;
  r.activated = RowStride(layer.intermediate, m.down.rank) * e;
  r.lse = s.heads * kStatisticBytes;
  r.attention_xa = (m.qkv.rank + m.o.rank) * e;
  r.gate_up_xa = m.gate_up.rank * e;
  r.down_xa = m.down.rank * e;

  BlockCost cost;
  cost.hidden_row = r.hidden;
  // What a sub-layer writes is kept where a norm stands behind it.
  const bool norms_outputs = NamesOf(s).attention_out_norm != nullptr;
  const int64_t output = norms_outputs ? r.hidden + kStatisticBytes : 0;
  // What reads the layer's own input keeps all: its input, gate beside input, their product, and
  // what it writes.
  const int64_t input_rows = RowStride(s.hidden, m.input_gate.rank) + 2 * s.layer_input +
                             RowStride(s.layer_input, m.input_projection.rank) + m.input_gate.rank +
                             m.input_projection.rank;
  const int64_t input_layer = s.layer_input > 0 ? input_rows * e + output : 0;
  const int64_t kept_always = input_layer + 2 * r.hidden + 2 * kStatisticBytes + 2 * output +
                              r.qkv + r.attended + r.lse + r.attention_xa + r.down_xa;
  const int64_t mlp = r.gate_up + r.gate_up_xa;
  const int64_t partials = OnePassPartials(layer, job, m, e);
  const int64_t activated = partials > 0 ? 0 : r.activated;  // kept or restored
  const int64_t norms = r.input_normed + r.middle_normed + r.heads + activated;
  cost.saved = {kept_always + mlp + norms, kept_always + mlp, kept_always, r.hidden};
  const int64_t all = cost.saved[Index(Recompute::kNothing)];
  // The gradients of normed values and of those before the norm stand by themselves.
  const int64_t dqkv =
      RowStride(m.qkv.rows, m.qkv.rank) * e + (s.value_norm ? 2 * kv * e : 0) + 2 * borrowed * e;
  const int64_t dy = RowStride(s.hidden, std::max(m.o.rank, m.down.rank)) * e;
  // The gradient of a sub-layer's output beside that of the residual stream, where they differ.
  const int64_t own_dy = s.residual_scale == 1.0 && !norms_outputs ? 0 : dy;
  for (int level = 0; level < kRecomputeLevels; ++level) {
    const int64_t kept = cost.saved[level];
    cost.forward[level] = all - activated + r.activated - kept + r.hidden;
    const bool has_input = level == Index(Recompute::kNothing) || level == Index(Recompute::kAll);
    // Everything that the feed-forward layer's backward reads, and the gradients it writes.
    const int64_t restored = all - (has_input ? 0 : r.input_normed + r.heads);
    const int64_t with_mlp = restored + r.hidden + layer.intermediate * e + partials;
    cost.backward_mlp[level] = with_mlp - kept + dy + own_dy;
    // The feed-forward layer's tensors are freed by then.
    const int64_t attention = all - mlp - activated - r.middle_normed - r.hidden - output;
    cost.backward_attention[level] = attention + r.hidden + q * e + dqkv - kept + dy + own_dy;
  }

  const int64_t norm_bytes = 2 * s.hidden * e, rope_bytes = 2 * (q + kv) * e;
  const int64_t glu_bytes = (m.gate_up.rows + layer.intermediate) * e;
  const int64_t forward_bytes = 2 * norm_bytes + rope_bytes + glu_bytes;
  cost.elementwise =
      forward_bytes + 8 * s.hidden * e + 3 * (q + kv) * e + 5 * layer.intermediate * e;
  const int64_t norms_again = 2 * norm_bytes + (s.qk_norm != QkNorm::kNone ? rope_bytes : 0) +
                              (partials > 0 ? 0 : glu_bytes);
  cost.elementwise_again = {0, norms_again, norms_again, forward_bytes};
  // Scaled and added in a pass of its own, forward and backward, for each of the two sub-layers.
  if (s.residual_scale != 1.0) cost.elementwise += 2 * (3 + 2) * r.hidden;
  // So are outputs normed and added, in a pass that may have to be made again.
  if (norms_outputs) {
    cost.elementwise += 2 * (3 + 3) * r.hidden;
    cost.elementwise_again[Index(Recompute::kAll)] += 2 * 3 * r.hidden;
  }
  // Values are normed in a pass of their own, forward, again and backward; so is a block's output
  // scaled.
  if (s.value_norm) {
    cost.elementwise += (2 + 5) * kv * e;
    for (int level = Index(Recompute::kNorms); level < kRecomputeLevels; ++level) {
      cost.elementwise_again[level] += 2 * kv * e;
    }
  }
  if (s.layer_input > 0) cost.elementwise += 12 * r.hidden + 14 * s.layer_input * e;
  if (NamesOf(s).layer_scale != nullptr) cost.elementwise += 2 * 2 * r.hidden;
  cost.elementwise += BiasBytes(s, m, job, e);
  const BlockMatrices::Matrix* const matrices[] = {&m.qkv,  &m.o,          &m.gate_up,
                                                   &m.down, &m.input_gate, &m.input_projection};
  for (const BlockMatrices::Matrix* matrix : matrices) cost.weights += matrix->weights();
  cost.weights_again = {0, 0, m.gate_up.weights(), cost.weights};
  int64_t adapter_forward = 0;
  for (const BlockMatrices::Matrix* matrix : matrices) {
    cost.matrix_elements +=
        (matrix->rows + matrix->rank) * RowStride(matrix->columns, matrix->rank);
    if (matrix->rank == 0) continue;
    adapter_forward += matrix->columns * e;
    // Gradients of both factors and of their product.
    cost.adapters += (2 * matrix->rows + matrix->columns) * e;
  }
  // The one pass reads what SwiGLU's backward reads anyway, and writes and reads its partial sums.
  if (partials > 0) cost.adapters += 2 * partials - (2 * m.gate_up.rows + m.down.columns) * e;
  cost.adapters += adapter_forward;
  const int64_t gate_up_adapter = m.gate_up.rank > 0 ? m.gate_up.columns * e : 0;
  cost.adapters_again = {0, 0, gate_up_adapter, adapter_forward};
  if (job.training.matmul == spec::Matmul::kFp8) AddFp8(m, e, &cost);
  if (UsesDora(job)) AddDora(m, e, &cost);
  return cost;
}

}  // namespace

std::vector<BlockCost> CostsOfBlocks(const ModelShape& shape, const spec::JobSpec& job,
                                     int64_t element_bytes) {
  const std::vector<BlockMatrices> matrices = MatricesOf(shape, job);
  std::vector<BlockCost> costs;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    costs.push_back(CostOfBlock(shape, shape.Layer(layer), matrices[layer], job, element_bytes));
  }
  return costs;
}

bool BackwardInSlabs(const ModelShape& s, int64_t length, bool deterministic) {
  const BackwardHeads heads = HeadsOf(s, {s.kv_heads, s.head_dim, s.intermediate}, deterministic);
  return heads.InSlabs(length) && !heads.InTurns(length, /*window=*/0);
}

namespace {

// Workspace of attention's backward by cuDNN, in whole documents or in slabs.
int64_t CallsWorkspace(const BackwardHeads& heads, int64_t documents, int64_t length) {
  if (!heads.InSlabs(length)) {
    const BackwardCall call = CallOf(heads, documents, length);
    return call.documents * call.kv_heads * heads.Workspace(length, length);
  }
  const int64_t queries = SlabQueries(heads, length);
  // A slab's own dk and dv in bf16, their sums in fp32, and its statistics.
  const int64_t sums = length * heads.head_dim * 2 * (2 + 4);
  const int64_t statistics = heads.group * queries * kStatisticBytes;
  return SlabKeyHeads(heads, queries, length) *
         (heads.Workspace(queries, length) + sums + statistics);
}

}  // namespace

// The larger one, since not all GPUs take turns.
int64_t AttentionWorkspace(const ModelShape& s, const LayerShape& layer, int64_t documents,
                           int64_t length, bool deterministic) {
  const BackwardHeads heads = HeadsOf(s, layer, deterministic);
  if (layer.head_dim > kLargestFusedHead) return PlainWorkspace(heads, length);
  const int64_t turns =
      heads.InTurns(length, /*window=*/0) ? heads.TurnsWorkspace(documents * length) : 0;
  return std::max(turns, CallsWorkspace(heads, documents, length));
}

}  // namespace sft::plan
