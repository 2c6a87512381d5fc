#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "worker/engine/kernels/attention_checks.h"
#include "worker/engine/kernels/cpu_ops.h"

// Attention by documents and blocks of queries: the scores of one block of queries against the keys
// it may see are held in full, fp32. Query heads that share a key head are rows of one product.
//
// Shape suffixes: G key heads, g query heads of one key head, L tokens of a document, B queries of
// a block, K keys a block sees, D head size.

namespace sft::engine::cpu {

namespace {

using at::Tensor;

constexpr int64_t kQueryBlock = 256;

struct Shape {
  int64_t tokens, query_heads, kv_heads, head_dim;
  int64_t group() const { return query_heads / kv_heads; }
};

Shape ShapeOf(const Tensor& q, const Tensor& k) {
  return {q.size(0), q.size(1), k.size(1), q.size(2)};
}

void CheckLike(const char* name, const Tensor& x, const Tensor& like) {
  TORCH_CHECK(x.sizes() == like.sizes() && x.scalar_type() == like.scalar_type(),
              "attention: ", name, " is ", x.scalar_type(), " ", x.sizes(), ", must be ",
              like.scalar_type(), " ", like.sizes());
}

// [T, G * g, D] -> tokens [first, first + count) as fp32 [G, g, count, D].
Tensor Heads(const Tensor& x, int64_t first, int64_t count, int64_t kv_heads) {
  return x.narrow(0, first, count)
      .view({count, kv_heads, x.size(1) / kv_heads, x.size(2)})
      .permute({1, 2, 0, 3})
      .to(at::kFloat)
      .contiguous();
}

// The inverse of Heads, written into tokens [first, ...) of `target` [T, G * g, D].
void StoreHeads(const Tensor& heads_GgLD, int64_t first, Tensor& target) {
  const int64_t count = heads_GgLD.size(2);
  target.narrow(0, first, count)
      .view({count, heads_GgLD.size(0), heads_GgLD.size(1), heads_GgLD.size(3)})
      .copy_(heads_GgLD.permute({2, 0, 1, 3}));
}

// The queries [begin, end) of a document's tokens and the keys [key_begin, end) that some of them
// see; the first of its queries is token `before`.
struct Block {
  int64_t begin, end, key_begin, before;
  int64_t row() const { return begin - before; }
  int64_t queries() const { return end - begin; }
  int64_t keys() const { return end - key_begin; }
};

std::vector<Block> BlocksOf(const AttentionDocument& document, int64_t window) {
  std::vector<Block> blocks;
  for (int64_t begin = document.before(); begin < document.keys; begin += kQueryBlock) {
    blocks.push_back({begin, std::min(begin + kQueryBlock, document.keys),
                      window > 0 ? std::max<int64_t>(0, begin - window + 1) : 0,
                      document.before()});
  }
  return blocks;
}

// 0 where a query sees a key, -infinity elsewhere; [B, K].
Tensor Mask(const Block& block, int64_t window) {
  Tensor mask = at::zeros({block.queries(), block.keys()}, at::kFloat);
  float* row = mask.mutable_data_ptr<float>();
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  for (int64_t query = block.begin; query < block.end; ++query, row += block.keys()) {
    if (window > 0) {
      const int64_t first_seen = query - window + 1;
      for (int64_t key = block.key_begin; key < first_seen; ++key)
        row[key - block.key_begin] = kHidden;
    }
    for (int64_t key = query + 1; key < block.end; ++key) row[key - block.key_begin] = kHidden;
  }
  return mask;
}

// [G, g, L, D] -> the block's rows [G, g * B, D].
Tensor QueryRows(const Tensor& x_GgLD, const Block& block) {
  return x_GgLD.narrow(2, block.row(), block.queries())
      .reshape({x_GgLD.size(0), x_GgLD.size(1) * block.queries(), x_GgLD.size(3)});
}

// [G, 1, L, D] -> the block's keys [G, K, D].
Tensor KeyRows(const Tensor& x_G1LD, const Block& block) {
  return x_G1LD.select(1, 0).narrow(1, block.key_begin, block.keys());
}

// scale * q k^T + mask, as [G, g, B, K].
Tensor Scores(const Tensor& q_GgLD, const Tensor& k_G1LD, const Block& block, double scale,
              int64_t window) {
  Tensor scores = at::bmm(QueryRows(q_GgLD, block), KeyRows(k_G1LD, block).transpose(1, 2));
  Tensor scores_GgBK = scores.view({q_GgLD.size(0), q_GgLD.size(1), block.queries(), block.keys()});
  return scores_GgBK.mul_(scale).add_(Mask(block, window));
}

Tensor AsRows(const Tensor& x_GgBK) {
  return x_GgBK.view({x_GgBK.size(0), x_GgBK.size(1) * x_GgBK.size(2), x_GgBK.size(3)});
}

// What the probabilities of a block of queries of the document whose keys are at `first` are
// multiplied by under dropout, [G, g, B, K]: 0, or 1 / (1 - p).
Tensor DropoutMask(const Tensor& like_GgBK, const ops::AttentionDropout& dropout, int64_t first,
                   const Block& block) {
  const auto place = static_cast<uint64_t>(first + block.begin) + 1;
  const at::Generator generator =
      at::detail::createCPUGenerator(dropout.seed ^ (place * 0x9e3779b97f4a7c15ULL));
  Tensor mask = at::empty_like(like_GgBK);
  return mask.bernoulli_(1.0 - dropout.p, generator).mul_(1.0 / (1.0 - dropout.p));
}

Tensor Forward(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
               const ops::Documents& documents, double scale, int64_t window,
               const ops::AttentionDropout& dropout) {
  CheckAttention(q, k, v, documents);
  CheckLike("out", out, q);
  const Shape shape = ShapeOf(q, k);
  Tensor lse = at::empty({shape.query_heads, shape.tokens}, q.options().dtype(at::kFloat));
  for (const AttentionDocument& document : AttentionDocumentsOf(documents)) {
    const int64_t first = document.query;
    Tensor q_GgLD = Heads(q, first, document.queries, shape.kv_heads);
    Tensor k_G1LD = Heads(k, document.key, document.keys, shape.kv_heads);
    Tensor v_G1LD = Heads(v, document.key, document.keys, shape.kv_heads);
    for (const Block& block : BlocksOf(document, window)) {
      Tensor p_GgBK = Scores(q_GgLD, k_G1LD, block, scale, window);
      Tensor largest = p_GgBK.amax({-1}, /*keepdim=*/true);
      Tensor sum = p_GgBK.sub_(largest).exp_().sum({-1}, /*keepdim=*/true);
      p_GgBK.div_(sum);
      if (dropout.p > 0.0) p_GgBK.mul_(DropoutMask(p_GgBK, dropout, document.key, block));
      Tensor out_rows = at::bmm(AsRows(p_GgBK), KeyRows(v_G1LD, block));
      StoreHeads(out_rows.view({shape.kv_heads, shape.group(), block.queries(), shape.head_dim}),
                 first + block.row(), out);
      lse.narrow(1, first + block.row(), block.queries())
          .copy_(sum.log_().add_(largest).view({shape.query_heads, block.queries()}));
    }
  }
  return lse;
}

void Backward(Tensor& dq, Tensor& dk, Tensor& dv, const Tensor& dout, const Tensor& q,
              const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
              const ops::Documents& documents, double scale, int64_t window,
              const ops::AttentionDropout& dropout) {
  CheckAttention(q, k, v, documents);
  CheckLike("dq", dq, q);
  CheckLike("dk", dk, k);
  CheckLike("dv", dv, v);
  CheckLike("dout", dout, q);
  CheckLike("out", out, q);
  const Shape shape = ShapeOf(q, k);
  for (const AttentionDocument& document : AttentionDocumentsOf(documents)) {
    const int64_t first = document.query, queries = document.queries;
    Tensor q_GgLD = Heads(q, first, queries, shape.kv_heads);
    Tensor k_G1LD = Heads(k, document.key, document.keys, shape.kv_heads);
    Tensor v_G1LD = Heads(v, document.key, document.keys, shape.kv_heads);
    Tensor do_GgLD = Heads(dout, first, queries, shape.kv_heads);
    Tensor delta_GgL = at::mul(do_GgLD, Heads(out, first, queries, shape.kv_heads)).sum({-1});
    Tensor dk_GLD = at::zeros({shape.kv_heads, document.keys, shape.head_dim}, lse.options());
    Tensor dv_GLD = at::zeros({shape.kv_heads, document.keys, shape.head_dim}, lse.options());
    for (const Block& block : BlocksOf(document, window)) {
      Tensor lse_GgB1 = lse.narrow(1, first + block.row(), block.queries())
                            .reshape({shape.kv_heads, shape.group(), block.queries(), 1});
      Tensor p_GgBK = Scores(q_GgLD, k_G1LD, block, scale, window).sub_(lse_GgB1).exp_();
      Tensor do_rows = QueryRows(do_GgLD, block);
      Tensor mask_GgBK;
      if (dropout.p > 0.0) mask_GgBK = DropoutMask(p_GgBK, dropout, document.key, block);
      const Tensor dropped_GgBK = mask_GgBK.defined() ? p_GgBK.mul(mask_GgBK) : p_GgBK;
      dv_GLD.narrow(1, block.key_begin, block.keys())
          .baddbmm_(AsRows(dropped_GgBK).transpose(1, 2), do_rows);
      Tensor ds_GgBK =
          at::bmm(do_rows, KeyRows(v_G1LD, block).transpose(1, 2)).view(p_GgBK.sizes());
      if (mask_GgBK.defined()) ds_GgBK.mul_(mask_GgBK);
      ds_GgBK.sub_(delta_GgL.narrow(2, block.row(), block.queries()).unsqueeze(-1));
      ds_GgBK.mul_(p_GgBK).mul_(scale);
      Tensor dq_rows = at::bmm(AsRows(ds_GgBK), KeyRows(k_G1LD, block));
      StoreHeads(dq_rows.view({shape.kv_heads, shape.group(), block.queries(), shape.head_dim}),
                 first + block.row(), dq);
      dk_GLD.narrow(1, block.key_begin, block.keys())
          .baddbmm_(AsRows(ds_GgBK).transpose(1, 2), QueryRows(q_GgLD, block));
    }
    StoreHeads(dk_GLD.unsqueeze(1), document.key, dk);
    StoreHeads(dv_GLD.unsqueeze(1), document.key, dv);
  }
}

}  // namespace

std::string AttentionKind(const Tensor&, at::IntArrayRef) { return "blocks of keys"; }
bool AttentionReadsShapeAlone(const Tensor&) { return true; }  // called anew each time

Tensor Attention(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                 const ops::Documents& documents, double scale, int64_t window) {
  return Forward(out, q, k, v, documents, scale, window, {});
}

void AttentionBackward(Tensor& dq, Tensor& dk, Tensor& dv, const Tensor& dout, const Tensor& q,
                       const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                       const ops::Documents& documents, double scale, int64_t window) {
  Backward(dq, dk, dv, dout, q, k, v, out, lse, documents, scale, window, {});
}

Tensor DropoutAttention(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                        const ops::Documents& documents, double scale, int64_t window,
                        const ops::AttentionDropout& dropout) {
  return Forward(out, q, k, v, documents, scale, window, dropout);
}

void DropoutAttentionBackward(Tensor& dq, Tensor& dk, Tensor& dv, const Tensor& dout,
                              const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                              const Tensor& lse, const ops::Documents& documents, double scale,
                              int64_t window, const ops::AttentionDropout& dropout) {
  Backward(dq, dk, dv, dout, q, k, v, out, lse, documents, scale, window, dropout);
}

}  // namespace sft::engine::cpu
