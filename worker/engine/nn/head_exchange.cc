#include "worker/engine/nn/head_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "common/base/round.h"

namespace sft::engine {

using at::Tensor;

namespace {

// Heads of x [t, heads, D] by the rank that has them: [n, t, heads/n, D].
Tensor ByRank(const Tensor& x, int64_t ranks) {
  return x.unflatten(1, {ranks, x.size(1) / ranks}).transpose(0, 1);
}

// The same of heads of keys, of which several ranks may have one: broadcast to n / kv_heads of
// them.
void CopyKeys(Tensor to, const Tensor& keys, int64_t ranks) {
  const int64_t heads = keys.size(1);
  if (heads >= ranks) {
    to.copy_(ByRank(keys, ranks));
    return;
  }
  to.unflatten(0, {heads, ranks / heads}).copy_(ByRank(keys, heads).unsqueeze(1));
}

void SumKeys(Tensor to, const Tensor& parts, int64_t ranks) {
  const int64_t heads = to.size(1);
  if (heads >= ranks) {
    ByRank(to, ranks).copy_(parts);
    return;
  }
  const Tensor copies = parts.unflatten(0, {heads, ranks / heads});
  Tensor sum = copies.select(1, 0).to(at::kFloat);
  for (int64_t i = 1; i < ranks / heads; ++i) sum.add_(copies.select(1, i));
  ByRank(to, heads).copy_(sum);
}

int64_t WidthOf(const std::vector<Tensor>& heads, int64_t ranks) {
  int64_t width = 0;
  for (const Tensor& x : heads) width += x.size(1) / ranks * x.size(2);
  return RoundUp(width, 8);  // kernels read rows of such widths in wide pieces
}

// Calls visit(part [n, T/n, heads/n, D], the same of x) for each x, whose parts are side by side.
template <typename Visit>
void ForEachPart(const Tensor& parts, const std::vector<Tensor>& heads, int64_t ranks,
                 const Visit& visit) {
  int64_t first = 0;
  for (const Tensor& x : heads) {
    const int64_t count = x.size(1) / ranks, size = x.size(2);
    visit(parts.narrow(2, first, count * size).unflatten(2, {count, size}), ByRank(x, ranks));
    first += count * size;
  }
}

}  // namespace

Tensor HeadExchange::Exchange(const Tensor& parts) const {
  Tensor out = at::empty_like(parts);
  group_.AllToAll(out, parts);
  return out;
}

HeadExchange::OwnHeads HeadExchange::Empty(const Tensor& q, const Tensor& k) const {
  const int64_t queries = q.size(1) / ranks(), keys = std::max<int64_t>(k.size(1) / ranks(), 1);
  const Tensor rows = at::empty({q.size(0) * ranks(), queries + 2 * keys, q.size(2)}, q.options());
  return {rows, rows.narrow(1, 0, queries), rows.narrow(1, queries, keys),
          rows.narrow(1, queries + keys, keys)};
}

HeadExchange::OwnHeads HeadExchange::Gather(const Tensor& q, const Tensor& k,
                                            const Tensor& v) const {
  OwnHeads own = Empty(q, k);
  const int64_t queries = own.q.size(1), keys = own.k.size(1);
  const Tensor parts = at::empty({ranks(), q.size(0), queries + 2 * keys, q.size(2)}, q.options());
  parts.narrow(2, 0, queries).copy_(ByRank(q, ranks()));
  CopyKeys(parts.narrow(2, queries, keys), k, ranks());
  CopyKeys(parts.narrow(2, queries + keys, keys), v, ranks());
  group_.AllToAll(own.rows, parts);
  return own;
}

void HeadExchange::Return(const OwnHeads& own, Tensor q, Tensor k, Tensor v) const {
  const Tensor parts = Exchange(own.rows).view({ranks(), q.size(0), own.rows.size(1), q.size(2)});
  const int64_t queries = own.q.size(1), keys = own.k.size(1);
  ByRank(q, ranks()).copy_(parts.narrow(2, 0, queries));
  SumKeys(k, parts.narrow(2, queries, keys), ranks());
  SumKeys(v, parts.narrow(2, queries + keys, keys), ranks());
}

Tensor HeadExchange::GatherRows(const std::vector<Tensor>& heads) const {
  const int64_t tokens = heads.front().size(0), width = WidthOf(heads, ranks());
  const Tensor parts = at::empty({ranks(), tokens, width}, heads.front().options());
  ForEachPart(parts, heads, ranks(),
              [](Tensor part, const Tensor& of_rank) { part.copy_(of_rank); });
  return Exchange(parts).view({ranks() * tokens, width});
}

void HeadExchange::ReturnRows(const Tensor& rows, const std::vector<Tensor>& heads) const {
  const Tensor parts = Exchange(rows).view({ranks(), rows.size(0) / ranks(), rows.size(1)});
  ForEachPart(parts, heads, ranks(),
              [](const Tensor& part, Tensor of_rank) { of_rank.copy_(part); });
}

Tensor HeadExchange::ToHeads(const Tensor& x) const {
  return Exchange(ByRank(x, ranks()).contiguous()).flatten(0, 1);
}

void HeadExchange::ToTokens(const Tensor& x, Tensor to) const {
  const Tensor parts = Exchange(x.contiguous()).view({ranks(), to.size(0), x.size(1), x.size(2)});
  ByRank(to, ranks()).copy_(parts);
}

}  // namespace sft::engine
