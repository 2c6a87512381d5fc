#include "common/plan/block.h"

#include <algorithm>

#include "common/base/round.h"
#include "common/plan/tensors.h"

namespace sft::plan {
namespace {

constexpr int64_t kStatisticBytes = 4;

constexpr int Index(Recompute level) { return static_cast<int>(level); }

// Bytes of each tensor of a block for one token.
struct Rows {
  int64_t hidden, input_normed, middle_normed, qkv, heads, attended, gate_up, activated, lse;
  int64_t attention_xa, gate_up_xa;
  int64_t mlp_always;  // what the feed-forward layer keeps at every level: down's xa, and the
                       // choice of experts
  // In a layer with experts: the rows that the experts read or write for a token, and its scores.
  int64_t gathered, scores;
};

// What is kept when a token chooses an expert: the choice's weight, the expert, its place by token
// and by expert, and the token of the row.
constexpr int64_t kChoiceBytes = 4 + 4 * 8;

// Passes over a row of the hidden state where experts are a branch with norms of their own, beside
// those of other layers: forward the norm before experts, the two behind the branches and the
// router's; backward these, the router's rows again and its gradient added.
constexpr int64_t kBranchForward = 2 + 2 + 3 + 2, kBranchBackward = 4 + 3 + 3 + 5 + 3;
// Passes of the forward that recomputation repeats; the choice of experts is kept.
constexpr int64_t kBranchNormAgain = 2, kBranchAgain = 2 + 2 + 3;

// Values in fp32 that a DeltaNet makes of its gates for each value head: the sum before softplus,
// its decay and beta.
constexpr int64_t kDeltaGates = 3;

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
  cost->tile_forward += m.down.columns;
  cost->tile_backward += m.gate_up.rows;
  cost->elementwise += inputs + outputs;
  cost->elementwise_again[Index(Recompute::kMlp)] += m.gate_up.columns;
  for (const Recompute level : {Recompute::kLinears, Recompute::kAll}) {
    cost->elementwise_again[Index(level)] += inputs;
  }
}

// Costs of FP8 products that are gradients of weights: x and dy are read twice, for the largest
// value of each column and to be turned, and written once. The copies are gone before dy's rows are
// converted, so they need memory only beyond those.
void AddFp8WeightGradients(const BlockMatrices& m, int64_t e, BlockCost* cost) {
  int64_t elements = 0;
  for (const BlockMatrices::Matrix* matrix : {&m.qkv, &m.o, &m.gate_up, &m.down}) {
    elements += matrix->rows + matrix->columns;
  }
  cost->elementwise += elements * (2 * e + 1);
  for (int level = 0; level < kRecomputeLevels; ++level) {
    cost->backward_mlp[level] += m.gate_up.columns;
    cost->backward_attention[level] += m.qkv.columns;
  }
  cost->tile_backward += m.gate_up.columns;
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
  cost->tile_backward += again(m.gate_up, m.down);
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
  if (layer.experts > 0) return 0;
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
  const bool fp8 = job.fp8();
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

}  // namespace

bool UsesDora(const spec::JobSpec& job) { return !job.full_finetune() && job.lora.use_dora; }

namespace {

// The cost of one block, part by part.
class CostMaker {
 public:
  CostMaker(const ModelShape& s, const LayerShape& layer, const BlockMatrices& m,
            const spec::JobSpec& job, int64_t e)
      : s_(s),
        layer_(layer),
        m_(m),
        job_(job),
        e_(e),
        n_(job.parallelism.tensor_parallel_size),
        q_(layer.delta ? s.delta.values() : s.heads * layer.head_dim),
        borrowed_(layer.keys_of >= 0 ? layer.kv_heads * layer.head_dim : 0),
        kv_(borrowed_ > 0 || layer.delta ? 0 : layer.kv_heads * layer.head_dim),
        top_k_(layer.experts > 0 ? layer.chosen : 1),
        activated_((top_k_ * layer.intermediate + layer.shared) * e),
        partials_(OnePassPartials(layer, job, m, e)),
        norms_outputs_(NamesOf(s).attention_out_norm != nullptr),
        branches_(layer.experts > 0 && NamesOf(s).experts_norm != nullptr),
        r_(RowsOfBlock()) {}

  BlockCost Make() const {
    BlockCost cost;
    AddKept(&cost);
    for (int level = 0; level < kRecomputeLevels; ++level) AddPeaks(level, &cost);
    AddPasses(&cost);
    AddProducts(&cost);
    if (job_.fp8()) sparse() ? AddFp8OfExperts(&cost) : AddFp8(m_, e_, &cost);
    if (job_.fp8_weight_gradients()) AddFp8WeightGradients(m_, e_, &cost);
    if (UsesDora(job_)) AddDora(m_, e_, &cost);
    return cost;
  }

 private:
  Rows RowsOfBlock() const {
    Rows r{};
    r.hidden = s_.hidden * e_ / n_;
    r.input_normed = RowStride(s_.hidden, m_.qkv.rank) * e_ / n_;
    r.qkv = m_.qkv.rows * e_;
    r.attended = RowStride(q_, m_.o.rank) * e_;
    if (layer_.delta) {
      r.heads = s_.delta.channels() * e_ + r.attended + s_.delta.value_heads * kStatisticBytes;
      r.attended = q_ * e_;
    } else {
      r.heads = s_.qk_norm != QkNorm::kNone ? (q_ + kv_) * e_ : 0;
      if (s_.value_norm && kv_ > 0) r.heads += kv_ * e_ + layer_.kv_heads * kStatisticBytes;
      r.lse = s_.heads * kStatisticBytes;
      if (s_.output_gate) {  // the gated rows beside those of attention
        r.heads += r.attended;
        r.attended = q_ * e_;
      }
    }
    r.attention_xa = (m_.qkv.rank + m_.o.rank) * e_;
    r.gate_up_xa = top_k_ * m_.gate_up.rank * e_;
    r.mlp_always = top_k_ * m_.down.rank * e_;
    if (layer_.experts == 0) {
      r.middle_normed = RowStride(s_.hidden, m_.gate_up.rank) * e_ / n_;
      r.gate_up = RowStride(m_.gate_up.rows, m_.gate_up.rank) * e_;
      r.activated = RowStride(layer_.intermediate, m_.down.rank) * e_;
      return r;
    }
    // Rows of experts have no room for adapters beside them, those of the expert of all tokens do.
    r.middle_normed = RowStride(s_.hidden, m_.shared_gate_up.rank) * e_;
    r.gate_up = top_k_ * m_.gate_up.rows * e_ +
                RowStride(m_.shared_gate_up.rows, m_.shared_gate_up.rank) * e_;
    r.activated =
        top_k_ * layer_.intermediate * e_ + RowStride(layer_.shared, m_.shared_down.rank) * e_;
    r.gate_up_xa +=
        (m_.shared_gate_up.rank + m_.shared_output_gate.rows + m_.shared_output_gate.rank) * e_;
    r.mlp_always += m_.shared_down.rank * e_ + top_k_ * kChoiceBytes;
    const bool keeps_all = s_.router.weights != RouterWeights::kSoftmaxOfTopK ||
                           job_.hyperparameters.router_aux_loss_coef > 0;
    if (keeps_all) r.mlp_always += layer_.experts * kStatisticBytes;  // probabilities
    if (NamesOf(s_).router_expert_scale != nullptr) r.mlp_always += top_k_ * kStatisticBytes;
    r.gathered = top_k_ * r.hidden;
    r.scores = layer_.experts * kStatisticBytes;
    return r;
  }
  bool sparse() const { return layer_.experts > 0; }

  // AddFp8 of a block with experts (nn/experts.h): tokens' rows are converted once and gathered as
  // bytes; the gate and its backward write theirs. Gathered ones exist only while experts' inputs
  // or the gradient of their outputs do, at moments that mlp_backward() has room for.
  void AddFp8OfExperts(BlockCost* cost) const {
    const int64_t read = e_ + 1, gathered = s_.hidden * read + 2 * top_k_ * s_.hidden;
    const int64_t of_experts = gathered + top_k_ * m_.down.columns;
    const int64_t of_attention = m_.qkv.columns + m_.o.columns * read;
    const int64_t of_shared = m_.shared_gate_up.columns + m_.shared_down.columns;
    for (int level = 0; level < kRecomputeLevels; ++level) {
      cost->forward[level] += top_k_ * m_.down.columns + m_.shared_down.columns;
      cost->backward_mlp[level] += m_.shared_gate_up.rows;
      cost->backward_attention[level] += m_.qkv.rows;
    }
    cost->tile_forward += top_k_ * m_.down.columns + m_.shared_down.columns;
    cost->tile_backward += m_.shared_gate_up.rows;
    cost->elementwise += of_experts + of_attention + of_shared;
    cost->elementwise += gathered + top_k_ * m_.gate_up.rows + m_.qkv.rows * read + m_.o.rows +
                         m_.shared_gate_up.rows * read + m_.shared_down.rows;
    cost->elementwise_again[Index(Recompute::kMlp)] += gathered + m_.shared_gate_up.columns;
    for (const Recompute level : {Recompute::kLinears, Recompute::kAll}) {
      cost->elementwise_again[Index(level)] += of_experts + of_attention + of_shared;
    }
  }
  // What mixes tokens makes beside its rows for a while, forward: gates of a DeltaNet, or the
  // sigmoids of attention's.
  int64_t mixer_forward() const {
    if (layer_.delta) return kDeltaGates * s_.delta.value_heads * kStatisticBytes;
    return s_.output_gate ? q_ * e_ : 0;
  }
  // The same backward: a DeltaNet has the gradients of convolved rows and of its gates too,
  // attention those of its queries by themselves.
  int64_t mixer_backward() const {
    if (layer_.delta) return s_.delta.channels() * e_ + 2 * mixer_forward();
    return s_.output_gate ? 2 * q_ * e_ : 0;
  }
  // Bytes that pass in what mixes tokens, its products and attention itself left out: forward,
  // that part of it which the level "norms" makes again, and backward.
  struct MixerPasses {
    int64_t forward = 0, again = 0, backward = 0;
  };
  MixerPasses PassesOfMixer() const {
    if (layer_.delta) {
      // Convolution, rule and norm.
      const int64_t conv = 2 * s_.delta.channels() * e_, norm = 3 * q_ * e_;
      const int64_t rule = (s_.delta.channels() + q_) * e_;
      // Linears of several parts write them in turn by key head: they are put in order, there when
      // little else is held.
      const int64_t order = NamesOf(s_).delta_z == nullptr ? 2 * r_.qkv : 0;
      return {conv + rule + norm + order, conv + norm,
              (6 * s_.delta.channels() + 6 * q_) * e_ + order};
    }
    const int64_t rope = 2 * (q_ + kv_) * e_, gate = s_.output_gate ? 3 * q_ * e_ : 0;
    // Sinks scale what attention gave.
    const int64_t sinks = NamesOf(s_).sinks != nullptr ? 2 * q_ * e_ : 0;
    return {rope + gate + sinks, (s_.qk_norm != QkNorm::kNone ? rope : 0) + gate,
            3 * (q_ + kv_) * e_ + (s_.output_gate ? 5 * q_ * e_ : 0)};
  }
  // Experts' inputs are gone when their outputs are made; scores are gone before either.
  int64_t mlp_forward() const {
    return r_.middle_normed + experts_normed() + mlp() +
           std::max(r_.scores, r_.activated + r_.gathered) + gate_input();
  }
  // The input of the shared expert's output gate, which is a copy where the gate is adapted.
  int64_t gate_input() const {
    const BlockMatrices::Matrix& gate = m_.shared_output_gate;
    return gate.rank == 0 ? 0 : RowStride(gate.columns, gate.rank) * e_;
  }
  // What the feed-forward layer's backward makes beside its input's gradient: the gradient of the
  // activated rows, and, of experts, their inputs again, beside the gradient of their outputs and
  // then of their inputs.
  int64_t mlp_backward() const {
    const int64_t of_gate = m_.shared_output_gate.columns * e_;  // the gradient of its input
    // Gradients of what experts and router read, which are two where experts are a branch.
    const int64_t of_branch = branches_ ? 2 * r_.hidden : 0;
    return activated_ + partials_ + 2 * r_.gathered + r_.scores + of_gate + of_branch;
  }
  // What a sub-layer writes, kept where a norm stands behind it.
  int64_t output() const { return norms_outputs_ ? r_.hidden + kStatisticBytes : 0; }
  // What both branches write, and what experts read, where they are a branch.
  int64_t branch_outputs() const { return branches_ ? 2 * output() : 0; }
  int64_t experts_normed() const { return branches_ ? r_.hidden : 0; }
  // What reads the layer's own input keeps all: its input, gate beside input, their product, and
  // what it writes.
  int64_t input_layer() const {
    if (s_.layer_input == 0) return 0;
    const int64_t rows = RowStride(s_.hidden, m_.input_gate.rank) + 2 * s_.layer_input +
                         RowStride(s_.layer_input, m_.input_projection.rank) + m_.input_gate.rank +
                         m_.input_projection.rank;
    return rows * e_ + output();
  }
  int64_t attended() const { return r_.attended + r_.lse; }
  int64_t mlp() const { return r_.gate_up + r_.gate_up_xa; }
  int64_t activated() const { return partials_ > 0 ? 0 : r_.activated; }  // kept or restored
  // The feed-forward layer's output is made again only for what stands behind it.
  bool output_again() const { return norms_outputs_ || s_.layer_input > 0; }
  int64_t kept_always() const {
    return input_layer() + 2 * r_.hidden + 2 * kStatisticBytes + 2 * output() + r_.qkv +
           attended() + r_.attention_xa + r_.mlp_always + branch_outputs() +
           (branches_ ? kStatisticBytes : 0);
  }
  int64_t dy() const {
    const int64_t mlp_rank = sparse() ? m_.shared_down.rank : m_.down.rank;
    return RowStride(s_.hidden, std::max(m_.o.rank, mlp_rank)) * e_ / n_;
  }
  // Where ranks share the matrices, the whole row that a linear reads or writes while it is on its
  // way, beside what the rank keeps of it.
  int64_t whole_row() const {
    const int64_t rank = std::max({m_.qkv.rank, m_.o.rank, m_.gate_up.rank, m_.down.rank});
    return n_ == 1 ? 0 : RowStride(s_.hidden, rank) * e_;
  }
  // The gradient of a sub-layer's output beside that of the residual stream, where they differ.
  int64_t own_dy() const { return s_.residual_scale == 1.0 && !norms_outputs_ ? 0 : dy(); }

  void AddKept(BlockCost* cost) const {
    cost->hidden_row = r_.hidden;
    const int64_t norms =
        r_.input_normed + r_.middle_normed + experts_normed() + r_.heads + activated();
    cost->saved = {kept_always() + mlp() + norms, kept_always() + mlp(), kept_always(),
                   r_.hidden + attended() + r_.mlp_always, r_.hidden + r_.mlp_always};
    const int64_t outputs = norms_outputs_ ? 2 * r_.hidden : 0;
    const int64_t rows = 2 * r_.hidden + outputs + r_.qkv + attended();
    cost->hostable = {0, rows + r_.gate_up, rows, r_.hidden + attended(), r_.hidden};
    // What the feed-forward layer makes of its input: for its forward, and for its backward.
    cost->tiles = s_.layer_input == 0 && n_ == 1;
    cost->tile_forward = mlp_forward();
    cost->tile_backward = r_.middle_normed + experts_normed() + mlp() + activated() + r_.hidden +
                          mlp_backward() + own_dy();
  }

  void AddPeaks(int level, BlockCost* cost) const {
    const bool keeps_all = level == Index(Recompute::kNothing);
    const int64_t input_normed = keeps_all ? r_.input_normed : 0;
    const int64_t kept = cost->saved[level];
    // The block's input and output, and what it holds of the attention by the end of either
    // sub-layer.
    const int64_t attention_end = 2 * r_.hidden + r_.qkv + r_.heads + attended() + r_.attention_xa +
                                  output() + input_normed + mixer_forward();
    int64_t held = kept_always() - r_.mlp_always - input_layer() - branch_outputs();
    if (keeps_all) held = attention_end - mixer_forward();
    if (level == Index(Recompute::kLinears)) held = 2 * r_.hidden + attended();
    if (level == Index(Recompute::kAll)) held = 2 * r_.hidden;
    held += r_.hidden + r_.mlp_always + input_layer() + output() + branch_outputs();
    cost->tiled_forward[level] = std::max(attention_end, held) - kept;
    cost->forward[level] = std::max(attention_end, held + cost->tile_forward) + whole_row() - kept;
    // Everything that the feed-forward layer's backward reads, and the gradients it writes.
    const int64_t all = cost->saved[Index(Recompute::kNothing)];
    const bool has_heads = keeps_all || level >= Index(Recompute::kLinears);
    const int64_t restored = all - (r_.input_normed - input_normed) - (has_heads ? 0 : r_.heads);
    const int64_t with_mlp = restored + r_.hidden + mlp_backward();
    cost->backward_mlp[level] = with_mlp - kept + dy() + own_dy() + whole_row();
    // The feed-forward layer's tensors are freed by then. What the attention read is made again
    // after it, where it was not kept; the gradients of normed values and of those before the norm
    // stand by themselves.
    const int64_t dqkv = RowStride(m_.qkv.rows, m_.qkv.rank) * e_ +
                         (s_.value_norm ? 2 * kv_ * e_ : 0) + 2 * borrowed_ * e_;
    const int64_t attention = all - mlp() - activated() - r_.middle_normed - experts_normed() -
                              r_.hidden - output() - branch_outputs() -
                              (r_.input_normed - input_normed);
    cost->backward_attention[level] =
        attention + q_ * e_ + dqkv + mixer_backward() - kept + dy() + own_dy() + whole_row();
  }

  void AddPasses(BlockCost* cost) const {
    const int64_t norm_bytes = 2 * r_.hidden;
    const MixerPasses mixer = PassesOfMixer();
    const int64_t glu_bytes = (top_k_ * m_.gate_up.rows + m_.shared_gate_up.rows) * e_ + activated_;
    const int64_t forward_bytes = 2 * norm_bytes + mixer.forward + glu_bytes;
    cost->elementwise = forward_bytes + 8 * r_.hidden + mixer.backward + 5 * activated_;
    if (sparse()) cost->elementwise += RoutingBytes();
    const int64_t norms_again = 2 * norm_bytes + mixer.again + (partials_ > 0 ? 0 : glu_bytes);
    // The product of the activation is made again only where the one pass does not make it.
    const int64_t all_again = forward_bytes - (partials_ > 0 && !output_again() ? glu_bytes : 0);
    cost->elementwise_again = {0, norms_again, norms_again, all_again, all_again};
    // Scaled and added in a pass of its own, forward and backward, for each of the two sub-layers.
    if (s_.residual_scale != 1.0) cost->elementwise += 2 * (3 + 2) * r_.hidden;
    // So are outputs normed and added, in a pass that may have to be made again.
    if (norms_outputs_) {
      cost->elementwise += 2 * (3 + 3) * r_.hidden;
      for (const Recompute level : {Recompute::kLinears, Recompute::kAll}) {
        cost->elementwise_again[Index(level)] += 2 * 3 * r_.hidden;
      }
    }
    if (branches_) {
      cost->elementwise += (kBranchForward + kBranchBackward) * r_.hidden;
      for (const Recompute level : {Recompute::kNorms, Recompute::kMlp}) {
        cost->elementwise_again[Index(level)] += kBranchNormAgain * r_.hidden;
      }
      for (const Recompute level : {Recompute::kLinears, Recompute::kAll}) {
        cost->elementwise_again[Index(level)] += kBranchAgain * r_.hidden;
      }
    }
    // Values are normed in a pass of their own, forward, again and backward; so is a block's output
    // scaled.
    if (s_.value_norm) {
      cost->elementwise += (2 + 5) * kv_ * e_;
      for (int level = Index(Recompute::kNorms); level < kRecomputeLevels; ++level) {
        cost->elementwise_again[level] += 2 * kv_ * e_;
      }
    }
    if (s_.layer_input > 0) cost->elementwise += 12 * r_.hidden + 14 * s_.layer_input * e_;
    if (NamesOf(s_).layer_scale != nullptr) cost->elementwise += 2 * 2 * r_.hidden;
    // The shared expert's output gate reads the layer's input, multiplies what down reads, and adds
    // to the input's gradient.
    if (m_.shared_output_gate.rows > 0) {
      cost->elementwise += (1 + 4) * r_.hidden + 2 * layer_.shared * e_;
    }
    cost->elementwise += BiasBytes(s_, m_, job_, e_);
  }

  // Bytes per token of choosing experts, of gathering rows for them and of adding up what they
  // write, forward and backward. The backward gathers both the rows and the gradients of what
  // experts wrote.
  int64_t RoutingBytes() const {
    return (3 + 5) * r_.gathered + 2 * r_.hidden + (2 + 2) * r_.scores;
  }

  // Bytes per token that an adapter's factors read and write in the forward, and beside that in
  // the backward, for the gradients of both factors and of their product. Those of a stack have
  // no room beside the rows: what they read is read once more.
  int64_t AdapterForward(const BlockMatrices::Matrix& matrix) const {
    if (matrix.rank == 0) return 0;
    return (matrix.experts == 0 ? 1 : top_k_) * matrix.columns * e_;
  }
  int64_t AdapterBackward(const BlockMatrices::Matrix& matrix) const {
    if (matrix.rank == 0) return 0;
    return (matrix.experts == 0 ? 1 : top_k_) * (2 * matrix.rows + matrix.columns) * e_;
  }

  // Elements that a token is multiplied with.
  int64_t WeightsOf(const BlockMatrices::Matrix& matrix) const {
    return (matrix.experts == 0 ? 1 : top_k_) * matrix.weights();
  }

  void AddStacks(BlockCost* cost) const {
    const int64_t gate_up = m_.gate_up.experts * m_.gate_up.weights();
    const int64_t down = m_.down.experts * m_.down.weights();
    cost->stacks = gate_up + down;
    cost->stacks_again = {0, 0, gate_up, gate_up, gate_up};
    cost->held_weights += cost->stacks;
    cost->matrix_elements += cost->stacks;
  }

  void AddProducts(BlockCost* cost) const {
    const BlockMatrices::Matrix* const matrices[] = {&m_.qkv,
                                                     &m_.o,
                                                     &m_.gate_up,
                                                     &m_.down,
                                                     &m_.input_gate,
                                                     &m_.input_projection,
                                                     &m_.shared_gate_up,
                                                     &m_.shared_down,
                                                     &m_.shared_output_gate};
    int64_t adapter_forward = 0;
    for (const BlockMatrices::Matrix* matrix : matrices) {
      cost->weights += WeightsOf(*matrix);
      cost->stack_scales += matrix->experts * (matrix->rows + matrix->columns);
      adapter_forward += AdapterForward(*matrix);
      cost->adapters += AdapterBackward(*matrix);
      if (matrix->experts > 0) continue;
      cost->held_weights += matrix->weights();
      cost->matrix_elements +=
          (matrix->rows + matrix->rank) * RowStride(matrix->columns, matrix->rank);
    }
    if (sparse()) AddStacks(cost);
    const int64_t downs = WeightsOf(m_.down) + m_.shared_down.weights();
    const int64_t linears_again = cost->weights - (output_again() ? 0 : downs);
    const int64_t gate_ups =
        WeightsOf(m_.gate_up) + m_.shared_gate_up.weights() + m_.shared_output_gate.weights();
    cost->weights_again = {0, 0, gate_ups, linears_again, linears_again};
    // Experts are chosen once.
    cost->weights += layer_.experts * s_.hidden;
    // The one pass reads what SwiGLU's backward reads anyway, and writes and reads its partial
    // sums.
    if (partials_ > 0) {
      cost->adapters += 2 * partials_ - (2 * m_.gate_up.rows + m_.down.columns) * e_;
    }
    cost->adapters += adapter_forward;
    const int64_t of_downs = AdapterForward(m_.down) + AdapterForward(m_.shared_down);
    const int64_t adapters_again = adapter_forward - (output_again() ? 0 : of_downs);
    const int64_t of_gate_ups = AdapterForward(m_.gate_up) + AdapterForward(m_.shared_gate_up) +
                                AdapterForward(m_.shared_output_gate);
    cost->adapters_again = {0, 0, of_gate_ups, adapters_again, adapters_again};
  }

  const ModelShape& s_;
  const LayerShape& layer_;
  const BlockMatrices& m_;
  const spec::JobSpec& job_;
  const int64_t e_;
  const int64_t n_;  // ranks that share the matrices: the residual stream's rows are a rank's own
  const int64_t q_;
  // The block's own keys and values. Those it borrows are counted with the model (peak_memory.cc),
  // but the gradients that it makes of them here.
  const int64_t borrowed_, kv_;
  const int64_t top_k_;      // rows of a token in the feed-forward layer
  const int64_t activated_;  // bytes, without room for adapters
  const int64_t partials_;
  const bool norms_outputs_;
  const bool branches_;  // experts beside a feed-forward layer, with norms of their own
  const Rows r_;
};

}  // namespace

std::vector<BlockCost> CostsOfBlocks(const ModelShape& shape, const spec::JobSpec& job,
                                     int64_t element_bytes) {
  const std::vector<BlockMatrices> matrices = MatricesOf(shape, job);
  std::vector<BlockCost> costs;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const LayerShape of_layer = shape.Layer(layer);
    costs.push_back(CostMaker(shape, of_layer, matrices[layer], job, element_bytes).Make());
  }
  return costs;
}

}  // namespace sft::plan
