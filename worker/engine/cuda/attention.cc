#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "worker/engine/cuda/cudnn_attention.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/kernels/batch_shape.h"

namespace sft::engine::cuda {

namespace {

using at::Tensor;

void CheckInput(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                at::IntArrayRef lengths) {
  TORCH_CHECK(q.dim() == 3 && k.dim() == 3 && v.sizes() == k.sizes() && q.size(0) == k.size(0) &&
                  q.size(2) == k.size(2),
              "attention: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes(), " do not fit");
  TORCH_CHECK(k.size(1) > 0 && q.size(1) % k.size(1) == 0, "attention: ", q.size(1),
              " query heads for ", k.size(1), " key heads");
  TORCH_CHECK(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) == q.size(0),
              "attention: document lengths do not sum to ", q.size(0), " tokens");
  TORCH_CHECK(cu_seqlens.scalar_type() == at::kInt && cu_seqlens.is_contiguous() &&
                  cu_seqlens.numel() == static_cast<int64_t>(lengths.size()) + 1,
              "attention: cu_seqlens must be int32 [", lengths.size() + 1, "], is ",
              cu_seqlens.scalar_type(), " ", cu_seqlens.sizes());
}

// `x` has the sizes and type of `like`, and heads that are dense within a token.
void CheckHeads(const char* name, const Tensor& x, const Tensor& like) {
  TORCH_CHECK(x.sizes() == like.sizes() && x.scalar_type() == like.scalar_type(),
              "attention: ", name, " is ", x.scalar_type(), " ", x.sizes(), ", must be ",
              like.scalar_type(), " ", like.sizes());
  const bool dense = x.stride(2) == 1 && (x.size(1) == 1 || x.stride(1) == x.size(2));
  TORCH_CHECK(x.numel() == 0 || dense, "attention: heads of ", name, " ", x.sizes(),
              " are not dense: strides ", x.strides());
}

enum class Kind { kCudnn, kFlash, kPlain };

Kind KindOf(at::TensorList tensors, const std::optional<CudnnBatch>& batch) {
  if (batch && CudnnTakes(tensors)) return Kind::kCudnn;
  const Tensor& q = tensors[0];
  const bool flash = q.scalar_type() == at::kBFloat16 && q.size(2) % 8 == 0 && q.size(2) <= 256;
  return flash && q.size(0) > 0 ? Kind::kFlash : Kind::kPlain;
}

// Flash counts the tokens before the query; ours counts the query itself too.
std::optional<int64_t> WindowLeft(int64_t window) {
  return window > 0 ? std::optional<int64_t>(window - 1) : std::nullopt;
}

// The plain path. Suffixes: G key heads, g query heads of one key head, L tokens, D head size.

// Tokens [first, first + count) of [T, heads, D] as fp32 [G, g * count, D].
Tensor Rows_GrD(const Tensor& x, int64_t first, int64_t count, int64_t kv_heads) {
  return x.narrow(0, first, count)
      .reshape({count, kv_heads, x.size(1) / kv_heads, x.size(2)})
      .permute({1, 2, 0, 3})
      .to(at::kFloat)
      .reshape({kv_heads, x.size(1) / kv_heads * count, x.size(2)});
}

void StoreRows(const Tensor& rows_GrD, int64_t first, int64_t count, Tensor& to) {
  const int64_t kv_heads = rows_GrD.size(0);
  to.narrow(0, first, count)
      .view({count, kv_heads, to.size(1) / kv_heads, to.size(2)})
      .copy_(rows_GrD.view({kv_heads, -1, count, to.size(2)}).permute({2, 0, 1, 3}));
}

// Scores of one document with -infinity where a query does not see a key: [G, g, L, L].
Tensor Scores_GgLL(const Tensor& q_GrD, const Tensor& k_GLD, double scale, int64_t window) {
  const int64_t length = k_GLD.size(1);
  const Tensor position = at::arange(length, k_GLD.options().dtype(at::kLong));
  const Tensor distance = position.unsqueeze(1) - position.unsqueeze(0);
  Tensor hidden = distance.lt(0);
  if (window > 0) hidden.logical_or_(distance.ge(window));
  return at::bmm(q_GrD, k_GLD.transpose(1, 2))
      .mul_(scale)
      .view({k_GLD.size(0), -1, length, length})
      .masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

Tensor PlainAttention(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                      at::IntArrayRef lengths, double scale, int64_t window) {
  const int64_t kv_heads = k.size(1);
  Tensor lse = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  int64_t first = 0;
  for (const int64_t length : lengths) {
    const Tensor scores = Scores_GgLL(Rows_GrD(q, first, length, kv_heads),
                                      Rows_GrD(k, first, length, kv_heads), scale, window);
    const Tensor lse_GgL = scores.logsumexp({-1});
    const Tensor p_GrL = (scores - lse_GgL.unsqueeze(-1)).exp_().view({kv_heads, -1, length});
    StoreRows(at::bmm(p_GrL, Rows_GrD(v, first, length, kv_heads)), first, length, out);
    lse.narrow(1, first, length).copy_(lse_GgL.view({q.size(1), length}));
    first += length;
  }
  return lse;
}

void PlainAttentionBackward(Tensor& dq, Tensor& dk, Tensor& dv, const Tensor& dout, const Tensor& q,
                            const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                            at::IntArrayRef lengths, double scale, int64_t window) {
  const int64_t kv_heads = k.size(1);
  int64_t first = 0;
  for (const int64_t length : lengths) {
    const Tensor q_GrD = Rows_GrD(q, first, length, kv_heads);
    const Tensor k_GLD = Rows_GrD(k, first, length, kv_heads);
    const Tensor v_GLD = Rows_GrD(v, first, length, kv_heads);
    const Tensor dout_GrD = Rows_GrD(dout, first, length, kv_heads);
    const Tensor delta_Gr1 =
        at::mul(dout_GrD, Rows_GrD(out, first, length, kv_heads)).sum({-1}, /*keepdim=*/true);
    const Tensor lse_Gr1 = lse.narrow(1, first, length).reshape({kv_heads, -1, 1});
    const Tensor p_GrL =
        (Scores_GgLL(q_GrD, k_GLD, scale, window).view({kv_heads, -1, length}) - lse_Gr1).exp_();
    StoreRows(at::bmm(p_GrL.transpose(1, 2), dout_GrD), first, length, dv);
    const Tensor ds_GrL =
        (at::bmm(dout_GrD, v_GLD.transpose(1, 2)) - delta_Gr1).mul_(p_GrL).mul_(scale);
    StoreRows(at::bmm(ds_GrL, k_GLD), first, length, dq);
    StoreRows(at::bmm(ds_GrL.transpose(1, 2), q_GrD), first, length, dk);
    first += length;
  }
}

// Rounded, so that what is launched depends on the batch's shape alone: blocks of queries behind a
// document's end leave at once.
int64_t LongestOf(at::IntArrayRef lengths) { return RoundLongest(ShapeOf(lengths).longest); }

Tensor FlashAttention(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                      const Tensor& cu_seqlens, at::IntArrayRef lengths, double scale,
                      int64_t window, const ops::AttentionDropout& dropout = {}) {
  const int64_t longest = LongestOf(lengths);
  if (dropout.p > 0.0) {
    at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator();
    generator.set_current_seed(dropout.seed);
  }
  auto [result, lse, rng_state, unused, mask] = at::_flash_attention_forward(
      q, k, v, cu_seqlens, cu_seqlens, longest, longest, dropout.p, /*is_causal=*/true,
      /*return_debug_mask=*/false, scale, WindowLeft(window), WindowLeft(window) ? 0 : -1);
  TORCH_CHECK(lse.dim() == 2 && lse.size(0) == q.size(1) && lse.size(1) == q.size(0),
              "attention: flash attention returned a logsumexp of shape ", lse.sizes());
  out.copy_(result);
  return lse;
}

void FlashAttentionBackward(Tensor& dq, Tensor& dk, Tensor& dv, const Tensor& dout, const Tensor& q,
                            const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                            const Tensor& cu_seqlens, at::IntArrayRef lengths, double scale,
                            int64_t window, const ops::AttentionDropout& dropout = {}) {
  const int64_t longest = LongestOf(lengths);
  // The generator's state in the forward, seed and offset; not read without dropout.
  Tensor rng_state = at::empty({2}, q.options().dtype(at::kUInt64));
  if (dropout.p > 0.0) {
    rng_state = at::tensor({static_cast<int64_t>(dropout.seed), int64_t{0}}, at::kLong)
                    .to(q.device())
                    .view(at::kUInt64);
  }
  const auto [dq_result, dk_result, dv_result] = at::_flash_attention_backward(
      dout, q, k, v, out, lse, cu_seqlens, cu_seqlens, longest, longest, dropout.p,
      /*is_causal=*/true, rng_state, at::empty({0}, q.options().dtype(at::kUInt64)), scale,
      WindowLeft(window), WindowLeft(window) ? 0 : -1);
  dq.copy_(dq_result);
  dk.copy_(dk_result);
  dv.copy_(dv_result);
}

}  // namespace

// Plain products do not: they go over the documents one by one.
bool AttentionReadsShapeAlone(const Tensor& q) {
  return KindOf({q}, std::nullopt) == Kind::kFlash;  // and cuDNN's
}

std::string AttentionKind(const Tensor& q, at::IntArrayRef lengths) {
  switch (KindOf({q}, CudnnBatchOf(lengths))) {
    case Kind::kCudnn:
      return "cuDNN";
    case Kind::kFlash:
      return "FlashAttention-2";
    case Kind::kPlain:
      break;
  }
  return "plain products";
}

// cuDNN's attention for bf16 where it has the shape (cudnn_attention.h), else FlashAttention-2 for
// heads of a size that it has (multiples of 8 up to 256), else plain products of whole documents in
// fp32, which hold length^2 scores of one document for all heads.
Tensor Attention(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                 const ops::Documents& documents, double scale, int64_t window) {
  const auto& [cu_seqlens, lengths] = documents;
  CheckInput(q, k, v, cu_seqlens, lengths);
  CheckHeads("q", q, q);
  CheckHeads("k", k, k);
  CheckHeads("v", v, k);
  CheckHeads("out", out, q);
  const c10::cuda::CUDAGuard guard(q.device());
  const std::optional<CudnnBatch> batch = CudnnBatchOf(lengths);
  Kind kind = KindOf({q, k, v, out}, batch);
  if (kind == Kind::kCudnn) {
    const auto lse = CudnnAttention(out, q, k, v, cu_seqlens, lengths, *batch, scale, window);
    if (lse) return *lse;
    kind = KindOf({q, k, v, out}, std::nullopt);
  }
  if (kind == Kind::kFlash) {
    return FlashAttention(out, q, k, v, cu_seqlens, lengths, scale, window);
  }
  return PlainAttention(out, q, k, v, lengths, scale, window);
}

void AttentionBackward(Tensor& dq, Tensor& dk, Tensor& dv, const Tensor& dout, const Tensor& q,
                       const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                       const ops::Documents& documents, double scale, int64_t window) {
  const auto& [cu_seqlens, lengths] = documents;
  CheckInput(q, k, v, cu_seqlens, lengths);
  CheckHeads("q", q, q);
  CheckHeads("k", k, k);
  CheckHeads("v", v, k);
  CheckHeads("dq", dq, q);
  CheckHeads("dk", dk, k);
  CheckHeads("dv", dv, k);
  CheckHeads("dout", dout, q);
  CheckHeads("out", out, q);
  const c10::cuda::CUDAGuard guard(q.device());
  // Any implementation may follow any forward: the shape of the logsumexp tells cuDNN's.
  const std::optional<CudnnBatch> batch = CudnnBatchOf(lengths);
  Tensor by_head = lse;
  if (lse.dim() == 3) {
    TORCH_CHECK(batch && lse.size(0) == batch->documents && lse.size(1) == q.size(1) &&
                    lse.size(2) == batch->longest,
                "attention backward: a logsumexp ", lse.sizes(), " of another batch than q ",
                q.sizes());
    if (KindOf({q, k, v, out, dout, dq, dk, dv}, batch) == Kind::kCudnn &&
        CudnnAttentionBackward(dq, dk, dv, dout, q, k, v, out, lse, cu_seqlens, lengths, *batch,
                               scale, window)) {
      return;
    }
    by_head = LseByHead(lse, cu_seqlens, q.size(0), *batch);
  }
  TORCH_CHECK(by_head.dim() == 2 && by_head.size(0) == q.size(1) && by_head.size(1) == q.size(0),
              "attention backward: a logsumexp ", lse.sizes(), " does not fit q ", q.sizes());
  if (KindOf({q}, std::nullopt) == Kind::kFlash) {
    FlashAttentionBackward(dq, dk, dv, dout, q, k, v, out, by_head, cu_seqlens, lengths, scale,
                           window);
  } else {
    PlainAttentionBackward(dq, dk, dv, dout, q, k, v, out, by_head, lengths, scale, window);
  }
}

// FlashAttention-2, which draws the mask from a seed; heads that it has not are refused.
Tensor DropoutAttention(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                        const ops::Documents& documents, double scale, int64_t window,
                        const ops::AttentionDropout& dropout) {
  const auto& [cu_seqlens, lengths] = documents;
  CheckInput(q, k, v, cu_seqlens, lengths);
  TORCH_CHECK(KindOf({q}, std::nullopt) == Kind::kFlash,
              "attention: dropout of probabilities needs bf16 and heads of a multiple of 8 up to "
              "256, not ",
              q.scalar_type(), " ", q.sizes());
  const c10::cuda::CUDAGuard guard(q.device());
  return FlashAttention(out, q, k, v, cu_seqlens, lengths, scale, window, dropout);
}

void DropoutAttentionBackward(Tensor& dq, Tensor& dk, Tensor& dv, const Tensor& dout,
                              const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                              const Tensor& lse, const ops::Documents& documents, double scale,
                              int64_t window, const ops::AttentionDropout& dropout) {
  const auto& [cu_seqlens, lengths] = documents;
  CheckInput(q, k, v, cu_seqlens, lengths);
  const c10::cuda::CUDAGuard guard(q.device());
  FlashAttentionBackward(dq, dk, dv, dout, q, k, v, out, lse, cu_seqlens, lengths, scale, window,
                         dropout);
}

}  // namespace sft::engine::cuda
