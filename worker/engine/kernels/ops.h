#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <tuple>
#include <vector>

// The engine's own operations, registered with LibTorch's dispatcher as sft::NAME (ops.cc holds the
// schema). CPU implementations are in this folder; libsft_cuda.so adds those for CUDA when a rank
// opens it. None records anything for autograd: forward and backward are separate operations.
//
// Shapes: T tokens of a packed micro-batch, H hidden size, D head size, I intermediate size, V
// vocabulary. Activations are fp32 or bf16; statistics are fp32. Arithmetic is fp32 inside whatever
// the type of the activations.
//
// Results are written into tensors that the caller allocated, first in the list. "Rows" means a
// matrix whose last dimension is dense and whose rows may be any distance apart: activations lie in
// buffers with columns to spare (nn/projection.h). What is read must not overlap what is written
// unless it says so. Every function may be called from any thread; wrong shapes or types throw
// c10::Error.

namespace sft::engine::ops {

// A tensor as NF4: codes and one scale a block.
struct Nf4Codes {
  at::Tensor codes;   // uint8 [(n + 1) / 2]
  at::Tensor absmax;  // fp32 [ceil(n / 64)]
};
// Quantises `weight` (fp32 or bf16, contiguous), flattened. See nf4_tables.h for the format.
Nf4Codes Nf4Quantize(const at::Tensor& weight);

// Block scales, themselves quantised to 8 bits.
struct NestedAbsmax {
  at::Tensor codes;          // uint8 [m]
  at::Tensor nested_absmax;  // fp32 [ceil(m / 256)]
  at::Tensor offset;         // fp32 scalar
};
// Double quantisation of a whole tensor's absmax (fp32 [m]).
NestedAbsmax AbsmaxQuantize(const at::Tensor& absmax);

// Writes the de-quantised weight into `out` (fp32 or bf16, n elements): rows, in row-major order.
void Nf4Dequantize(at::Tensor& out, const at::Tensor& codes, const at::Tensor& absmax);
void Nf4DequantizeNested(at::Tensor& out, const at::Tensor& codes, const at::Tensor& absmax_codes,
                         const at::Tensor& nested_absmax, const at::Tensor& offset);

// A matrix as INT8 (int8_format.h): codes int8 [N, K] of `weight` [N, K] (fp32 or bf16, contiguous)
// whose rows have the largest magnitudes `absmax` fp32 [N]. They are given, since a caller may hold
// a part of a row.
at::Tensor Int8Quantize(const at::Tensor& weight, const at::Tensor& absmax);
// out = codes * scale of the row, out rows [N, K] (fp32 or bf16), codes int8 [N, K] contiguous,
// scale fp32 [N].
void Int8Dequantize(at::Tensor& out, const at::Tensor& codes, const at::Tensor& scale);

// out = alpha * a b + beta * out, a [m, k], b [k, n], out rows [m, n]. Of a and b one dimension is
// dense, the other may be any distance apart: transposed views cost nothing. a and b have one type;
// out has it too, or is fp32. Products are summed in fp32. With beta 0 `out` is not read.
void Gemm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha, double beta);
// out = a b + addend, rounded once; `addend` rows [m, n] of out's type.
void GemmAdd(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& addend);

// sum += part, or with `fresh` sum = part: `sum` fp32, `part` fp32 or bf16, both dense and of one
// size.
void Accumulate(at::Tensor& sum, const at::Tensor& part, bool fresh);

// Puts adapters beside the weight that they adapt, which fills the first N rows and K columns of
// `matrix` rows [N + R, >= K + R] (nn/projection.h): member i has a[i] [r_i, K] and b[i] [n_i,
// r_i], R = sum of r_i, and stands at row first_row[i]. Writes columns [K, K + R) of rows [0, N):
// scale * b[i] in member i's rows and its r_i columns, zero elsewhere; and columns [0, K) of rows
// [N, N + R): the a[i] one below the other. The rest is left alone. All of matrix's type.
void PlaceFactors(at::Tensor& matrix, at::TensorList a, at::TensorList b, at::IntArrayRef first_row,
                  double scale);

// Products in FP8. Rows of FP8 (float8 e4m3, no infinity, at most 448) stand for value *
// scale[row]. A conversion rounds to nearest even and saturates. Scales leave room above the
// largest value of a row for what is put beside it later: 448 stands for kFp8Room times that value.
// FP8 is a floating format, so the room costs precision only below 1 / 7168 of the largest value.
inline constexpr float kFp8Room = 4.0f;

// out = x / scale, scale[row] = kFp8Room / 448 * the largest magnitude in the row, 1 for a row of
// zeros; out float8 rows [T, C], scale fp32 [T] dense, x rows [T, C].
void Fp8Quantize(at::Tensor& out, at::Tensor& scale, const at::Tensor& x);
// The same with a given scale.
void Fp8QuantizeWith(at::Tensor& out, const at::Tensor& x, const at::Tensor& scale);

// Where an operation that makes rows [T, C] writes them in FP8 too, in the same pass: the bits that
// Fp8Quantize gives of the rows as they were rounded.
struct Fp8Rows {
  at::Tensor values;  // float8 rows [T, C]; undefined: nowhere
  at::Tensor scale;   // fp32 [T], dense
};

// An NF4 weight [N, K], de-quantised and divided by the scale of its row of `out`: float8 rows [N,
// K], scale [N]; or with `transposed` its transpose, float8 rows [K, N], scale [K]. `absmax_codes`
// is uint8 with nested_absmax and offset (Nf4DequantizeNested), or fp32 with both undefined.
void Fp8FromNf4(at::Tensor& out, const at::Tensor& codes, const at::Tensor& absmax_codes,
                const at::Tensor& nested_absmax, const at::Tensor& offset, const at::Tensor& scale,
                bool transposed);

// PlaceFactors in FP8. Forward, `matrix` float8 rows [N, K + R] with scale [N]: columns [K, K + R)
// become `scale` times b[i], block diagonal. With `transposed`, `matrix` float8 rows
// [K, N + R] with scale [K]: columns [N, N + R) become the a[i]^T side by side. a and b in bf16 or
// fp32. The rest is left alone.
void Fp8PlaceFactors(at::Tensor& matrix, const at::Tensor& row_scale, at::TensorList a,
                     at::TensorList b, at::IntArrayRef first_row, double scale, bool transposed);

// out = (a * a_scale) (b * b_scale)^T (+ addend where it is defined), summed in fp32 and rounded
// once: a float8 rows [m, k], a_scale fp32 [m], b float8 rows [n, k], b_scale fp32 [n], out rows
// [m, n] of bf16 or fp32, addend rows [m, n] of out's type. On CUDA k and the rows of a and b must
// be multiples of 16. `fast_sums`: a GPU may keep sums in the 14 bits or so that its tensor cores
// hold (DeepSeek-V3, arXiv 2412.19437, 3.3.2); a CPU has no such sums.
void Fp8Gemm(at::Tensor& out, const at::Tensor& a, const at::Tensor& a_scale, const at::Tensor& b,
             const at::Tensor& b_scale, const at::Tensor& addend, bool fast_sums = false);

// y = weight * cast(x * rstd), rstd = 1 / sqrt(mean(x^2) + eps) over a row; x and y rows [T, H].
// Returns rstd, fp32 [T]. y in FP8 goes to `fp8`.
at::Tensor RmsNorm(at::Tensor& y, const at::Tensor& x, const at::Tensor& weight, double eps,
                   const Fp8Rows& fp8 = {});
// dx = the gradient of x, plus `residual` where it is defined, rounded once. dx, dy, x and residual
// are rows [T, H]; dx may be dy or residual. Returns dweight fp32 [H], of no elements where
// need_weight_grad is false. dx in FP8 goes to `fp8`.
at::Tensor RmsNormBackward(at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x,
                           const at::Tensor& weight, const at::Tensor& rstd,
                           const at::Tensor& residual, bool need_weight_grad,
                           const Fp8Rows& fp8 = {});

// Rotates the halves of each head in place: x [T, heads, D] (last two dimensions dense, any token
// stride), cos and sin fp32 [T, D / 2]. `inverse` rotates back, which is also the backward.
void Rope(at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool inverse);

// RmsNorm of each query and key head, then Rope: q [T, Hq, D] and k [T, Hkv, D] (last two
// dimensions dense, any token stride) from the first Hq + Hkv heads of `qkv` rows [T, (Hq + 2 Hkv)
// D]. Weights [D]. The normed heads are rounded to the type before they are rotated.
void NormRope(at::Tensor& q, at::Tensor& k, const at::Tensor& qkv, const at::Tensor& q_weight,
              const at::Tensor& k_weight, const at::Tensor& cos, const at::Tensor& sin, double eps);
// Turns the gradients of q and k, which are the first Hq + Hkv heads of `dqkv` rows [T, (Hq + 2
// Hkv) D], into those of the heads of `qkv`, in place; the last Hkv heads are left alone. Returns
// the gradients of the two weights, fp32 [D], of no elements where need_weight_grad is false.
std::tuple<at::Tensor, at::Tensor> NormRopeBackward(at::Tensor& dqkv, const at::Tensor& qkv,
                                                    const at::Tensor& q_weight,
                                                    const at::Tensor& k_weight,
                                                    const at::Tensor& cos, const at::Tensor& sin,
                                                    int64_t heads, int64_t kv_heads, double eps,
                                                    bool need_weight_grad);

// out = silu(gate) * up; out rows [T, I], gate_up rows [T, 2 I]: gate, then up. out in FP8 goes to
// `fp8`.
void Swiglu(at::Tensor& out, const at::Tensor& gate_up, const Fp8Rows& fp8 = {});
// dgate_up rows [T, 2 I]; it may be gate_up.
void SwigluBackward(at::Tensor& dgate_up, const at::Tensor& dy, const at::Tensor& gate_up);

// What the backward of SwiGLU meets of the adapters beside it. R: the rank of each of the three.
struct SwigluFactors {
  at::Tensor xa;              // rows [T, 2 R]: the input times the first factors of gate and of up
  at::Tensor b_gate, b_up;    // [I, R]
  at::Tensor dxa_down;        // rows [T, R]: the gradient of down's input times its first factor
  at::Tensor db_gate, db_up;  // fp32 [I, R]
  at::Tensor da_down;         // fp32 [R, I]
  double scale = 1.0;
};
// Whether SwigluFactorsBackward is there for rows like `gate_up`, [T, 2 I], and this rank.
bool HasSwigluFactors(const at::Tensor& gate_up, int64_t rank);
// SwigluBackward into gate_up itself, between projections of frozen weights, with all products of
// their adapters that read its rows. With d the gradient of gate and up, and h = silu(gate) * up:
//
//   db_gate += scale d_gate^T xa[:, :R]     db_up += scale d_up^T xa[:, R:]
//   da_down += dxa_down^T h                 dxa = scale [ d_gate b_gate | d_up b_up ]
//
// dxa rows [T, 2 R]; they may be spare columns of gate_up.
void SwigluFactorsBackward(at::Tensor& gate_up, at::Tensor& dxa, const at::Tensor& dy,
                           const SwigluFactors& factors);

// Whether operations of this process that sum up in parallel keep a fixed order, so that they give
// the same bits each time; LibTorch's own, too. Before any thread computes. On a CPU ours always
// do.
void SetDeterministic(bool deterministic);

// The documents of a packed micro-batch: document i is tokens [cu_seqlens[i], cu_seqlens[i + 1]).
struct Documents {
  at::Tensor cu_seqlens;    // int32 [documents + 1], on the device of the tokens
  at::IntArrayRef lengths;  // the same on the host; their sum is T
};

// Causal attention within each document; a token sees the last `window` tokens, itself included
// (0: all). q and out [T, Hq, D], k and v [T, Hkv, D]: last two dimensions dense, any token stride;
// Hq a multiple of Hkv. Returns lse fp32 (natural log of the sum of exponentials), of a shape that
// only AttentionBackward on the same device reads.
at::Tensor Attention(at::Tensor& out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const Documents& documents, double scale, int64_t window);
// dq, dk, dv as q, k, v.
void AttentionBackward(at::Tensor& dq, at::Tensor& dk, at::Tensor& dv, const at::Tensor& dout,
                       const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const at::Tensor& out, const at::Tensor& lse, const Documents& documents,
                       double scale, int64_t window);

// The implementation of Attention that heads like q [T, Hq, D] get for documents of those lengths:
// "cuDNN", "FlashAttention-2", "plain products". Of cuDNN there may yet turn out to be no plan,
// which stderr then tells.
std::string AttentionKind(const at::Tensor& q, at::IntArrayRef lengths);

// Whether a recording (graph.h) of Attention and its backward, for heads like q [T, Hq, D], serves
// all micro-batches of one shape (batch_shape.h).
bool AttentionReadsShapeAlone(const at::Tensor& q);

// Sum of the cross entropies of logits [N, V] against targets int64 [N], fp32 scalar. Rows whose
// target is negative count nothing. With `backward` the rows become softmax - onehot (zero for
// rows that count nothing), unnormalised; without it they keep their values.
at::Tensor CrossEntropy(at::Tensor& logits, const at::Tensor& targets, bool backward);

// `bytes` of memory on the device of `like`, uninitialised. On a GPU from the upper end of the
// largest piece that its allocator has free, while other tensors come from the lower end: for what
// outlives them, so that the free piece between stays one.
at::Tensor EmptyAtTheEnd(const at::Tensor& like, int64_t bytes);

// `bytes` of host memory, uninitialised, that the device of `like` copies from and to by itself and
// reads through the bus. No more than that, where LibTorch's own would be rounded up to a power of
// two.
at::Tensor EmptyPinned(const at::Tensor& like, int64_t bytes);

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
// What all elements of a step have in common, in fp32 as torch has it.
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
// The step of optim/adamw.h with the rounding of optim/adamw_cpu.cc. `maps` holds the values and
// midpoints of the dynamic maps of m, then of v, fp32 [2, 2, 256]; undefined where there are no
// codes. For CUDA alone: the optimizer has loops of its own for a CPU.
void AdamWStep(const AdamWTensors& tensors, const at::Tensor& maps, const AdamWFactors& factors);

}  // namespace sft::engine::ops
