#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "common/plan/layer_kinds.h"

// Parameter and result types of the engine's operations (operations.def).

namespace sft::engine::ops {

// A tensor as NF4: codes and one scale a block.
struct Nf4Codes {
  at::Tensor codes;   // uint8 [(n + 1) / 2]
  at::Tensor absmax;  // fp32 [ceil(n / 64)]
};

// Block scales, themselves quantised to 8 bits.
struct NestedAbsmax {
  at::Tensor codes;          // uint8 [m]
  at::Tensor nested_absmax;  // fp32 [ceil(m / 256)]
  at::Tensor offset;         // fp32 scalar
};

// Products in FP8. Rows of FP8 (float8 e4m3, no infinity, at most 448) stand for value *
// scale[row]. A conversion rounds to nearest even and saturates. Scales leave room above the
// largest value of a row for what is put beside it later: 448 stands for kFp8Room times that value.
// FP8 is a floating format, so the room costs precision only below 1 / 7168 of the largest value.
inline constexpr float kFp8Room = 4.0f;

// FP8 target of an operation that makes rows [T, C] and writes them in FP8 too, in the same pass:
// the bits that Fp8Quantize gives of the rows as they were rounded. An operation whose last
// parameter it is may be called without it.
struct Fp8Rows {
  at::Tensor values;  // float8 rows [T, C]; undefined: nowhere
  at::Tensor scale;   // fp32 [T], dense
};

// What a norm is beside its weight.
struct NormOptions {
  // Llama's norm is the usual one: a number alone is its epsilon.
  NormOptions(double epsilon, plan::NormKind kind = plan::NormKind::kRms)
      : epsilon(epsilon), kind(kind) {}

  double epsilon;
  plan::NormKind kind;
};

// Gradients of the two weights of a NormRope.
struct NormRopeGradients {
  at::Tensor q_weight, k_weight;  // fp32 [D], of no elements where they were not asked for
};

// The adapters beside a gated activation, for its backward. R: the rank of each of the three.
struct GluFactors {
  at::Tensor xa;              // rows [T, 2 R]: the input times the first factors of gate and of up
  at::Tensor b_gate, b_up;    // [I, R]
  at::Tensor dxa_down;        // rows [T, R]: the gradient of down's input times its first factor
  at::Tensor db_gate, db_up;  // fp32 [I, R]
  at::Tensor da_down;         // fp32 [R, I]
  double scale = 1.0;
  plan::ActivationKind kind = plan::ActivationKind::kSilu;
};

// Pieces of documents behind each other in rows, for generation: how many rows each has, and the
// number of its document's state; -1: its rows are padding, whose results are zeros.
struct Pieces {
  std::vector<int64_t> lengths, states;
  // On a GPU the same there, which is what kernels read: int64 [3, pieces], dense in the second
  // dimension, the first row of each piece, its rows, its state. States may be others in a graph
  // that is replayed (kernels/graph.h).
  at::Tensor table;
};

// The documents of a packed micro-batch: document i is tokens [cu_seqlens[i], cu_seqlens[i + 1]).
struct Documents {
  at::Tensor cu_seqlens;    // int32 [documents + 1], on the device of the tokens
  at::IntArrayRef lengths;  // the same on the host; their sum is T
  // The same of their keys, for attention alone: a document's queries are the last of its tokens,
  // and it has no fewer keys than queries. Undefined and empty: as many keys as queries.
  at::Tensor key_cu_seqlens = {};
  at::IntArrayRef key_lengths = {};

  at::IntArrayRef keys() const { return key_lengths.empty() ? lengths : key_lengths; }
  // The tokens that keys have.
  int64_t key_tokens() const { return std::accumulate(keys().begin(), keys().end(), int64_t{0}); }
};

// Rows that are sorted into groups, as those of a mixture's experts: group g has rows [begins[g],
// begins[g + 1]).
class RowGroups {
 public:
  RowGroups() = default;
  // int32 [groups + 1], dense, on the device of the rows.
  explicit RowGroups(at::Tensor begins) : begins_(std::move(begins)) {}

  bool defined() const { return begins_.defined(); }
  int64_t count() const { return begins_.numel() - 1; }
  const at::Tensor& begins() const { return begins_; }
  // The same on the host. The first call waits for the device; not to be called by two threads.
  const std::vector<int32_t>& OnHost() const {
    if (on_host_.empty()) {
      const at::Tensor copy = begins_.to(at::kCPU);
      const int32_t* data = copy.const_data_ptr<int32_t>();
      on_host_.assign(data, data + copy.numel());
    }
    return on_host_;
  }

 private:
  at::Tensor begins_;
  mutable std::vector<int32_t> on_host_;
};

// What a product of groups adds beside its first factors.
struct GroupedAddend {
  at::Tensor a, b;  // rows [S, R] and [G, R, N]: a_g b_g; undefined: nothing
  at::Tensor bias;  // [G, N], dense; undefined: none
};

// Dropout of attention's probabilities.
struct AttentionDropout {
  double p = 0.0;
  uint64_t seed = 0;
};

// Tensors of one AdamW step, dense, on one device; in each list they have one type, and all of a
// list's or none are there.
struct AdamWTensors {
  std::vector<at::Tensor> weights;             // fp32 or bf16
  std::vector<at::Tensor> grads;               // fp32 or bf16, read only
  std::vector<at::Tensor> copies;              // none, or the weights in the other type
  std::vector<at::Tensor> m, v;                // fp32, bf16 or 8-bit codes
  std::vector<at::Tensor> m_absmax, v_absmax;  // with codes: fp32, one a block of kOptimizerBlock
  std::vector<int64_t> keys, offsets;          // of the random bits (adamw_format.h)
};
// The numbers of an AdamW step, the same for all elements; fp32, as torch has them.
struct AdamWFactors {
  float keep;             // 1 - lr * weight_decay
  float one_minus_beta1;  // weight of the gradient in m
  float beta2;
  float one_minus_beta2;
  float step_size;   // lr / (1 - beta1^t)
  float sqrt_bias2;  // sqrt(1 - beta2^t)
  float epsilon;
  float grad_scale;
};

}  // namespace sft::engine::ops
