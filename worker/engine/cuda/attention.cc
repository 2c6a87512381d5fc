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
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/attention_calls.h"
#include "worker/engine/cuda/cudnn_attention.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/kernels/attention_checks.h"
#include "worker/engine/kernels/batch_shape.h"

namespace sft::engine::cuda {

namespace {

using at::Tensor;

void CheckInput(const Tensor& q, const Tensor& k, const Tensor& v,
                const ops::Documents& documents) {
  CheckAttention(q, k, v, documents);
  const auto check = [](const Tensor& ends, size_t count) {
    TORCH_CHECK(ends.scalar_type() == at::kInt && ends.is_contiguous() &&
                    ends.numel() == static_cast<int64_t>(count) + 1,
                "attention: cu_seqlens must be int32 [", count + 1, "], is ", ends.scalar_type(),
                " ", ends.sizes());
  };
  check(documents.cu_seqlens, documents.lengths.size());
  if (!documents.key_lengths.empty()) check(documents.key_cu_seqlens, documents.lengths.size());
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
  const bool flash = q.scalar_type() == at::kBFloat16 && q.size(2) % 8 == 0 &&
                     q.size(2) <= plan::kLargestFusedHead;
  return flash && q.size(0) > 0 ? Kind::kFlash : Kind::kPlain;
}

// cuDNN's kernels here have as many queries as keys.
std::optional<CudnnBatch> BatchOf(const ops::Documents& documents) {
  return documents.key_lengths.empty() ? CudnnBatchOf(documents.lengths) : std::nullopt;
}

// Flash counts the tokens before the query; ours counts the query itself too.
std::optional<int64_t> WindowLeft(int64_t window) {
  return window > 0 ? std::optional<int64_t>(window - 1) : std::nullopt;
}

// The plain path, for heads that no library serves and for fp32: a document, some key heads of it
// and a block of queries at a time (plan::PlainStepOf). Suffixes: G key heads of a step, g query
// heads of one key head, L tokens of the document, B queries of a block, K keys that they see, D
// head size.

// What a step works on, counted in tokens of the document.
struct PlainBlock {
  int64_t first, count;  // queries
  int64_t key_first, keys;
  int64_t before;  // the document's first query
  int64_t row() const { return first - before; }
};

// Tokens [first, first + count) of some key heads with their query heads, of [T, heads, D] as fp32
// [G, g, count, D].
Tensor Heads_GgLD(const Tensor& x, int64_t first, int64_t count, int64_t kv_heads, int64_t head,
                  int64_t heads) {
  const int64_t group = x.size(1) / kv_heads;
  return x.narrow(0, first, count)
      .narrow(1, head * group, heads * group)
      .unflatten(1, {heads, group})
      .permute({1, 2, 0, 3})
      .to(at::kFloat)
      .contiguous();
}

// The inverse, into tokens [first, ...) of `to`.
void StoreHeads(const Tensor& rows_GgLD, int64_t first, int64_t kv_heads, int64_t head,
                Tensor& to) {
  const int64_t group = to.size(1) / kv_heads;
  to.narrow(0, first, rows_GgLD.size(2))
      .narrow(1, head * group, rows_GgLD.size(0) * group)
      .unflatten(1, {rows_GgLD.size(0), group})
      .copy_(rows_GgLD.permute({2, 0, 1, 3}));
}

// The block's queries of all heads that share a key head, as rows [G, g * B, D].
Tensor QueryRows(const Tensor& x_GgLD, const PlainBlock& block) {
  return x_GgLD.narrow(2, block.row(), block.count)
      .reshape({x_GgLD.size(0), x_GgLD.size(1) * block.count, x_GgLD.size(3)});
}

// The block's keys [G, K, D].
Tensor KeyRows(const Tensor& x_G1LD, const PlainBlock& block) {
  return x_G1LD.select(1, 0).narrow(1, block.key_first, block.keys);
}

// Scores with -infinity where a query does not see a key: [G, g, B, K].
Tensor Scores_GgBK(const Tensor& q_GgLD, const Tensor& k_G1LD, const PlainBlock& block,
                   double scale, int64_t window) {
  const auto longs = q_GgLD.options().dtype(at::kLong);
  const Tensor query = at::arange(block.first, block.first + block.count, longs).unsqueeze(1);
  const Tensor key = at::arange(block.key_first, block.key_first + block.keys, longs).unsqueeze(0);
  const Tensor distance = query - key;
  Tensor hidden = distance.lt(0);
  if (window > 0) hidden.logical_or_(distance.ge(window));
  return at::bmm(QueryRows(q_GgLD, block), KeyRows(k_G1LD, block).transpose(1, 2))
      .mul_(scale)
      .view({q_GgLD.size(0), q_GgLD.size(1), block.count, block.keys})
      .masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

Tensor AsRows(const Tensor& x_GgBK) { return x_GgBK.flatten(1, 2); }

// Calls visit(document, first key head, step) for each step over key heads.
template <typename Visit>
void ForEachPlainStep(const Tensor& q, const Tensor& k, const ops::Documents& documents,
                      const Visit& visit) {
  const plan::BackwardHeads heads{k.size(1), q.size(1) / k.size(1), k.size(2)};
  for (const AttentionDocument& document : AttentionDocumentsOf(documents)) {
    const plan::PlainStep step = plan::PlainStepOf(heads, document.keys);
    for (int64_t head = 0; head < heads.kv_heads; head += step.kv_heads) {
      visit(document, head, step);
    }
  }
}

// Blocks of a document's queries, each with the keys that some of them see.
std::vector<PlainBlock> PlainBlocks(const AttentionDocument& document, int64_t queries,
                                    int64_t window) {
  std::vector<PlainBlock> blocks;
  for (int64_t first = document.before(); first < document.keys; first += queries) {
    const int64_t count = std::min(queries, document.keys - first);
    const int64_t key = window > 0 ? std::max<int64_t>(0, first - window + 1) : 0;
    blocks.push_back({first, count, key, first + count - key, document.before()});
  }
  return blocks;
}

Tensor PlainAttention(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                      const ops::Documents& documents, double scale, int64_t window) {
  const int64_t kv_heads = k.size(1), group = q.size(1) / kv_heads;
  Tensor lse = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  ForEachPlainStep(q, k, documents, [&](const AttentionDocument& doc, int64_t head, auto step) {
    const auto heads = [&](const Tensor& x, int64_t first, int64_t count) {
      return Heads_GgLD(x, first, count, kv_heads, head, step.kv_heads);
    };
    const Tensor q_GgLD = heads(q, doc.query, doc.queries);
    const Tensor k_G1LD = heads(k, doc.key, doc.keys), v_G1LD = heads(v, doc.key, doc.keys);
    for (const PlainBlock& block : PlainBlocks(doc, step.queries, window)) {
      Tensor p_GgBK = Scores_GgBK(q_GgLD, k_G1LD, block, scale, window);
      const Tensor lse_GgB = p_GgBK.logsumexp({-1});
      p_GgBK.sub_(lse_GgB.unsqueeze(-1)).exp_();
      const Tensor rows = at::bmm(AsRows(p_GgBK), KeyRows(v_G1LD, block));
      StoreHeads(rows.view({step.kv_heads, group, block.count, q.size(2)}), doc.query + block.row(),
                 kv_heads, head, out);
      lse.narrow(0, head * group, step.kv_heads * group)
          .narrow(1, doc.query + block.row(), block.count)
          .copy_(lse_GgB.flatten(0, 1));
    }
  });
  return lse;
}

void PlainAttentionBackward(Tensor& dq, Tensor& dk, Tensor& dv, const Tensor& dout, const Tensor& q,
                            const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                            const ops::Documents& documents, double scale, int64_t window) {
  const int64_t kv_heads = k.size(1), group = q.size(1) / kv_heads;
  ForEachPlainStep(q, k, documents, [&](const AttentionDocument& doc, int64_t head, auto step) {
    const auto heads = [&](const Tensor& x, int64_t first, int64_t count) {
      return Heads_GgLD(x, first, count, kv_heads, head, step.kv_heads);
    };
    const auto queries = [&](const Tensor& x) { return heads(x, doc.query, doc.queries); };
    const Tensor k_G1LD = heads(k, doc.key, doc.keys), v_G1LD = heads(v, doc.key, doc.keys);
    const Tensor q_GgLD = queries(q), do_GgLD = queries(dout);
    const Tensor delta_GgL1 = at::mul(do_GgLD, queries(out)).sum({-1}, /*keepdim=*/true);
    Tensor dk_GLD = at::zeros({step.kv_heads, doc.keys, k.size(2)}, lse.options());
    Tensor dv_GLD = at::zeros_like(dk_GLD);
    for (const PlainBlock& block : PlainBlocks(doc, step.queries, window)) {
      const Tensor lse_GgB1 = lse.narrow(0, head * group, step.kv_heads * group)
                                  .narrow(1, doc.query + block.row(), block.count)
                                  .reshape({step.kv_heads, group, block.count, 1});
      const Tensor p_GgBK = Scores_GgBK(q_GgLD, k_G1LD, block, scale, window).sub_(lse_GgB1).exp_();
      const Tensor do_rows = QueryRows(do_GgLD, block);
      dv_GLD.narrow(1, block.key_first, block.keys)
          .baddbmm_(AsRows(p_GgBK).transpose(1, 2), do_rows);
      Tensor ds_GgBK =
          at::bmm(do_rows, KeyRows(v_G1LD, block).transpose(1, 2)).view(p_GgBK.sizes());
      ds_GgBK.sub_(delta_GgL1.narrow(2, block.row(), block.count)).mul_(p_GgBK).mul_(scale);
      const Tensor dq_rows = at::bmm(AsRows(ds_GgBK), KeyRows(k_G1LD, block));
      StoreHeads(dq_rows.view({step.kv_heads, group, block.count, q.size(2)}),
                 doc.query + block.row(), kv_heads, head, dq);
      dk_GLD.narrow(1, block.key_first, block.keys)
          .baddbmm_(AsRows(ds_GgBK).transpose(1, 2), QueryRows(q_GgLD, block));
    }
    StoreHeads(dk_GLD.unsqueeze(1), doc.key, kv_heads, head, dk);
    StoreHeads(dv_GLD.unsqueeze(1), doc.key, kv_heads, head, dv);
  });
}

// Documents as FlashAttention-2 has them: the last query sees all keys. The longest are rounded, so
// that what is launched depends on the batch's shape alone: blocks of queries behind a document's
// end leave at once.
struct FlashDocuments {
  explicit FlashDocuments(const ops::Documents& documents)
      : queries(documents.cu_seqlens),
        keys(documents.key_lengths.empty() ? queries : documents.key_cu_seqlens),
        most_queries(RoundLongest(ShapeOf(documents.lengths).longest)),
        most_keys(RoundLongest(ShapeOf(documents.keys()).longest)) {}

  const Tensor &queries, &keys;
  const int64_t most_queries, most_keys;
};

Tensor FlashAttention(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                      const ops::Documents& all, double scale, int64_t window,
                      const ops::AttentionDropout& dropout = {}) {
  const FlashDocuments documents(all);
  if (dropout.p > 0.0) {
    at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator();
    generator.set_current_seed(dropout.seed);
  }
  auto [result, lse, rng_state, unused, mask] = at::_flash_attention_forward(
      q, k, v, documents.queries, documents.keys, documents.most_queries, documents.most_keys,
      dropout.p, /*is_causal=*/true, /*return_debug_mask=*/false, scale, WindowLeft(window),
      WindowLeft(window) ? 0 : -1);
  TORCH_CHECK(lse.dim() == 2 && lse.size(0) == q.size(1) && lse.size(1) == q.size(0),
              "attention: flash attention returned a logsumexp of shape ", lse.sizes());
  out.copy_(result);
  return lse;
}

void FlashAttentionBackward(Tensor& dq, Tensor& dk, Tensor& dv, const Tensor& dout, const Tensor& q,
                            const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                            const ops::Documents& all, double scale, int64_t window,
                            const ops::AttentionDropout& dropout = {}) {
  const FlashDocuments documents(all);
  // The generator's state in the forward, seed and offset; not read without dropout.
  Tensor rng_state = at::empty({2}, q.options().dtype(at::kUInt64));
  if (dropout.p > 0.0) {
    rng_state = at::tensor({static_cast<int64_t>(dropout.seed), int64_t{0}}, at::kLong)
                    .to(q.device())
                    .view(at::kUInt64);
  }
  const auto [dq_result, dk_result, dv_result] = at::_flash_attention_backward(
      dout, q, k, v, out, lse, documents.queries, documents.keys, documents.most_queries,
      documents.most_keys, dropout.p, /*is_causal=*/true, rng_state,
      at::empty({0}, q.options().dtype(at::kUInt64)), scale, WindowLeft(window),
      WindowLeft(window) ? 0 : -1);
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
// heads of a size that it has (multiples of 8 up to 256), else plain products in fp32, which hold
// plan::kPlainScores bytes of scores at a time.
Tensor Attention(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                 const ops::Documents& documents, double scale, int64_t window) {
  CheckInput(q, k, v, documents);
  CheckHeads("q", q, q);
  CheckHeads("k", k, k);
  CheckHeads("v", v, k);
  CheckHeads("out", out, q);
  const c10::cuda::CUDAGuard guard(q.device());
  const std::optional<CudnnBatch> batch = BatchOf(documents);
  Kind kind = KindOf({q, k, v, out}, batch);
  if (kind == Kind::kCudnn) {
    const auto lse = CudnnAttention(out, q, k, v, documents.cu_seqlens, documents.lengths, *batch,
                                    scale, window);
    if (lse) return *lse;
    kind = KindOf({q, k, v, out}, std::nullopt);
  }
  if (kind == Kind::kFlash) {
    return FlashAttention(out, q, k, v, documents, scale, window);
  }
  return PlainAttention(out, q, k, v, documents, scale, window);
}

void AttentionBackward(Tensor& dq, Tensor& dk, Tensor& dv, const Tensor& dout, const Tensor& q,
                       const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                       const ops::Documents& documents, double scale, int64_t window) {
  CheckInput(q, k, v, documents);
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
  const std::optional<CudnnBatch> batch = BatchOf(documents);
  Tensor by_head = lse;
  if (lse.dim() == 3) {
    TORCH_CHECK(batch && lse.size(0) == batch->documents && lse.size(1) == q.size(1) &&
                    lse.size(2) == batch->longest,
                "attention backward: a logsumexp ", lse.sizes(), " of another batch than q ",
                q.sizes());
    if (KindOf({q, k, v, out, dout, dq, dk, dv}, batch) == Kind::kCudnn &&
        CudnnAttentionBackward(dq, dk, dv, dout, q, k, v, out, lse, documents.cu_seqlens,
                               documents.lengths, *batch, scale, window)) {
      return;
    }
    by_head = LseByHead(lse, documents.cu_seqlens, q.size(0), *batch);
  }
  TORCH_CHECK(by_head.dim() == 2 && by_head.size(0) == q.size(1) && by_head.size(1) == q.size(0),
              "attention backward: a logsumexp ", lse.sizes(), " does not fit q ", q.sizes());
  if (KindOf({q}, std::nullopt) == Kind::kFlash) {
    FlashAttentionBackward(dq, dk, dv, dout, q, k, v, out, by_head, documents, scale, window);
  } else {
    PlainAttentionBackward(dq, dk, dv, dout, q, k, v, out, by_head, documents, scale, window);
  }
}

// FlashAttention-2, which draws the mask from a seed; heads that it has not are refused.
Tensor DropoutAttention(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                        const ops::Documents& documents, double scale, int64_t window,
                        const ops::AttentionDropout& dropout) {
  CheckInput(q, k, v, documents);
  TORCH_CHECK(KindOf({q}, std::nullopt) == Kind::kFlash,
              "attention: dropout of probabilities needs bf16 and heads of a multiple of 8 up to "
              "256, not ",
              q.scalar_type(), " ", q.sizes());
  const c10::cuda::CUDAGuard guard(q.device());
  return FlashAttention(out, q, k, v, documents, scale, window, dropout);
}

void DropoutAttentionBackward(Tensor& dq, Tensor& dk, Tensor& dv, const Tensor& dout,
                              const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                              const Tensor& lse, const ops::Documents& documents, double scale,
                              int64_t window, const ops::AttentionDropout& dropout) {
  CheckInput(q, k, v, documents);
  const c10::cuda::CUDAGuard guard(q.device());
  FlashAttentionBackward(dq, dk, dv, dout, q, k, v, out, lse, documents, scale, window, dropout);
}

}  // namespace sft::engine::cuda
