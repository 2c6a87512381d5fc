#include <ATen/Parallel.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/delta_checks.h"

// The gated delta rule by documents, key heads and chunks of tokens, in fp32. A document's chunks
// follow each other on one thread, so that its bits depend neither on others nor on the number of
// threads, and a thread has the states of one key head's value heads at a time. Within a chunk,
// with c the sum of g up to a token, G[i, j] = exp(c_i - c_j) for i >= j and 0 elsewhere, and S the
// state before it:
//
//   A = diag(beta) (K K^T * G), below the diagonal    U, W = (I + A)^-1 diag(beta) [ V | exp(c) K ]
//   N = U - W S             the values that the tokens add to the state
//   P = Q K^T * G           out = (exp(c) Q) S + P N
//   E = exp(c_last - c) K   S' = exp(c_last) S + E^T N
//
// U and W are solved for, in fp32: with keys that repeat and beta near 1, A is far from small.
// Exponents are subtracted before exp, and in fp64: c may be large where its differences are small.
//
// Shape suffixes: G key heads, H value heads, C tokens of a chunk, D size of a key, E of a value.

namespace sft::engine::cpu {

namespace {

using at::Tensor;

// Of one key head or more, with their value heads.
struct DeltaInputs {
  Tensor q, k, v, g, beta;

  int64_t repeats() const { return v.size(1) / q.size(1); }  // value heads of a key head
  // `x`, whose dimension 1 is that of value heads, for key head `head`.
  Tensor OfValues(const Tensor& x, int64_t head) const {
    return x.narrow(1, head * repeats(), repeats());
  }
  DeltaInputs Of(int64_t head) const {
    return {q.narrow(1, head, 1), k.narrow(1, head, 1), OfValues(v, head), OfValues(g, head),
            OfValues(beta, head)};
  }
};

// Tokens [first, first + count).
struct Span {
  int64_t first, count;
};

// Calls run(head, document) for each key head and document, several at a time.
template <typename Run>
void ForTasks(int64_t heads, const ops::Documents& documents, const Run& run) {
  std::vector<Span> spans;
  int64_t first = 0;
  for (int64_t length : documents.lengths) {
    spans.push_back({first, length});
    first += length;
  }
  const auto count = static_cast<int64_t>(spans.size());
  at::parallel_for(0, heads * count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) run(task / count, spans[task % count]);
  });
}

// Calls run(span) for the chunks of a document.
template <typename Run>
void ForChunks(const Span& document, const Run& run) {
  for (int64_t begin = 0; begin < document.count; begin += kDeltaChunk) {
    run(Span{document.first + begin, std::min(kDeltaChunk, document.count - begin)});
  }
}

// [T, heads, size] -> fp32 [heads, count, size]; always memory of its own, so that the products of
// a document have the same bits wherever it lies.
Tensor ChunkHeads(const Tensor& x, const Span& span) {
  Tensor heads = at::empty({x.size(1), span.count, x.size(2)}, x.options().dtype(at::kFloat));
  return heads.copy_(x.narrow(0, span.first, span.count).transpose(0, 1));
}

// fp32 [heads, count, size] -> those tokens of `target` [T, heads, size].
void StoreChunk(const Tensor& heads, const Span& span, const Tensor& target) {
  target.narrow(0, span.first, span.count).copy_(heads.transpose(0, 1));
}

// Heads over their lengths, and what they were multiplied by.
struct UnitHeads {
  Tensor unit_GCD, factor_GC1;
};

UnitHeads Unit(const Tensor& x_GCD) {
  Tensor factor = at::sum(x_GCD.square(), {-1}, /*keepdim=*/true).add_(kDeltaEpsilon).rsqrt_();
  return {x_GCD.mul(factor), factor};
}

// The gradient of the heads, of that of their units.
Tensor UnitBackward(const Tensor& d_GCD, const UnitHeads& heads) {
  const Tensor along = at::sum(d_GCD.mul(heads.unit_GCD), {-1}, /*keepdim=*/true);
  return d_GCD.sub(heads.unit_GCD.mul(along)).mul_(heads.factor_GC1);
}

// Each key head once for each of its value heads.
Tensor Repeated(const Tensor& x_GCD, int64_t repeats) {
  return x_GCD.unsqueeze(1)
      .expand({x_GCD.size(0), repeats, x_GCD.size(1), x_GCD.size(2)})
      .reshape({x_GCD.size(0) * repeats, x_GCD.size(1), x_GCD.size(2)});
}

// The sum over the value heads of each key head.
Tensor SummedRepeats(const Tensor& x_HCD, int64_t repeats) {
  return at::sum(x_HCD.unflatten(0, {x_HCD.size(0) / repeats, repeats}), {1});
}

// What a chunk is made of, but for the state. Queries are scaled.
struct DeltaChunk {
  UnitHeads q, k;
  Tensor q_HCD, k_HCD, v_HCE;
  Tensor beta_HC1;
  Tensor gates_HCC;  // G
  Tensor from_HC1;   // exp(c): from the chunk's start to a token
  Tensor to_HC1;     // exp(c_last - c): from a token to the chunk's end
  Tensor all_H11;    // exp(c_last)
  Tensor m_HCC;      // K K^T * G; A = beta * m below the diagonal
  Tensor a_HCC;      // A; what stands above is never read
  Tensor u_HCE, w_HCD;
};

double QueryScale(const DeltaInputs& inputs) {
  return 1.0 / std::sqrt(static_cast<double>(inputs.q.size(2)));
}

DeltaChunk MakeChunk(const DeltaInputs& inputs, const Span& span) {
  DeltaChunk chunk;
  chunk.q = Unit(ChunkHeads(inputs.q, span));
  chunk.k = Unit(ChunkHeads(inputs.k, span));
  chunk.q_HCD = Repeated(chunk.q.unit_GCD.mul(QueryScale(inputs)), inputs.repeats());
  chunk.k_HCD = Repeated(chunk.k.unit_GCD, inputs.repeats());
  chunk.v_HCE = ChunkHeads(inputs.v, span);
  chunk.beta_HC1 = ChunkHeads(inputs.beta.unsqueeze(2), span);
  const Tensor c_HC1 = ChunkHeads(inputs.g.unsqueeze(2), span).to(at::kDouble).cumsum(1);
  const Tensor last = c_HC1.narrow(1, span.count - 1, 1);
  const auto exp = [](const Tensor& exponents) { return exponents.to(at::kFloat).exp_(); };
  chunk.gates_HCC = exp(c_HC1.sub(c_HC1.transpose(1, 2))).tril_();
  chunk.from_HC1 = exp(c_HC1);
  chunk.to_HC1 = exp(last.sub(c_HC1));
  chunk.all_H11 = exp(last);
  chunk.m_HCC = at::bmm(chunk.k_HCD, chunk.k_HCD.transpose(1, 2)).mul_(chunk.gates_HCC);
  chunk.a_HCC = chunk.m_HCC.mul(chunk.beta_HC1);
  const Tensor keys = chunk.k_HCD.mul(chunk.from_HC1);
  const Tensor solved = at::linalg_solve_triangular(
      chunk.a_HCC, at::cat({chunk.v_HCE, keys}, 2).mul_(chunk.beta_HC1), /*upper=*/false,
      /*left=*/true, /*unitriangular=*/true);
  const int64_t values = chunk.v_HCE.size(2);
  chunk.u_HCE = solved.narrow(2, 0, values).contiguous();
  chunk.w_HCD = solved.narrow(2, values, keys.size(2)).contiguous();
  return chunk;
}

// N
Tensor NewValues(const DeltaChunk& chunk, const Tensor& state_HDE) {
  return at::baddbmm(chunk.u_HCE, chunk.w_HCD, state_HDE, 1.0, -1.0);
}

Tensor StateAfter(const DeltaChunk& chunk, const Tensor& state_HDE, const Tensor& new_HCE) {
  return state_HDE.mul(chunk.all_H11)
      .baddbmm_(chunk.k_HCD.mul(chunk.to_HC1).transpose(1, 2), new_HCE);
}

Tensor ZeroState(const DeltaInputs& inputs) {
  return at::zeros({inputs.v.size(1), inputs.q.size(2), inputs.v.size(2)}, inputs.g.options());
}

// P
Tensor DeltaScores(const DeltaChunk& chunk) {
  return at::bmm(chunk.q_HCD, chunk.k_HCD.transpose(1, 2)).mul_(chunk.gates_HCC);
}

// Views of what is written.
using DeltaGradients = DeltaInputs;

Tensor RowSums(const Tensor& x_HCD) { return at::sum(x_HCD, {-1}, /*keepdim=*/true); }

// Writes the gradients of c as those of g: a token's g is in the c of all from it to the chunk's
// end.
void StoreDecayGradient(const Tensor& dc_HC1, const Span& span, const Tensor& dg) {
  StoreChunk(dc_HC1.flip({1}).cumsum(1).flip({1}), span, dg.unsqueeze(2));
}

// The chunk's gradients, of dout [H, C, E] and that of the state after it, `dstate`, which becomes
// that of `state`, the one before it.
void ChunkBackward(const DeltaInputs& inputs, const Span& span, const Tensor& dout_HCE,
                   const Tensor& state_HDE, Tensor& dstate_HDE, const DeltaGradients& out) {
  const DeltaChunk chunk = MakeChunk(inputs, span);
  const Tensor &q = chunk.q_HCD, &k = chunk.k_HCD, &beta = chunk.beta_HC1;
  const Tensor n_HCE = NewValues(chunk, state_HDE), p_HCC = DeltaScores(chunk);
  const Tensor ends_HCD = k.mul(chunk.to_HC1);  // E
  const Tensor state_t = state_HDE.transpose(1, 2), dstate_t = dstate_HDE.transpose(1, 2);
  const Tensor dn_HCE = at::bmm(ends_HCD, dstate_HDE).baddbmm_(p_HCC.transpose(1, 2), dout_HCE);
  const Tensor dp_HCC = at::bmm(dout_HCE, n_HCE.transpose(1, 2));
  const Tensor dq_state = at::bmm(dout_HCE, state_t).mul_(chunk.from_HC1);
  const Tensor dk_state = at::bmm(n_HCE, dstate_t).mul_(chunk.to_HC1);
  const Tensor dw_HCD = at::bmm(dn_HCE, state_t).neg_();
  // Through the solution.
  const Tensor solved = at::linalg_solve_triangular(
      chunk.a_HCC.transpose(1, 2), at::cat({dn_HCE, dw_HCD}, 2), /*upper=*/true, /*left=*/true,
      /*unitriangular=*/true);
  const Tensor xu_HCE = solved.narrow(2, 0, dn_HCE.size(2)).contiguous();
  const Tensor xw_HCD = solved.narrow(2, dn_HCE.size(2), dw_HCD.size(2)).contiguous();
  const Tensor da_HCC = at::bmm(xu_HCE, chunk.u_HCE.transpose(1, 2))
                            .baddbmm_(xw_HCD, chunk.w_HCD.transpose(1, 2))
                            .neg_()
                            .tril_(-1);
  const Tensor xw_k = RowSums(xw_HCD.mul(k)).mul_(chunk.from_HC1);
  StoreChunk(xu_HCE.mul(beta), span, out.v);
  StoreChunk(RowSums(xu_HCE.mul(chunk.v_HCE)).add_(xw_k).add_(RowSums(da_HCC.mul(chunk.m_HCC))),
             span, out.beta.unsqueeze(2));

  const Tensor z_HCC = da_HCC.mul(chunk.gates_HCC).mul_(beta);
  const Tensor dp_gated = dp_HCC.mul(chunk.gates_HCC);
  const Tensor dq_HCD = at::baddbmm(dq_state, dp_gated, k);
  const Tensor dk_HCD = at::baddbmm(dk_state, dp_gated.transpose(1, 2), q)
                            .add_(xw_HCD.mul(chunk.from_HC1.mul(beta)))
                            .baddbmm_(z_HCC.add(z_HCC.transpose(1, 2)), k);
  const int64_t repeats = inputs.repeats();
  StoreChunk(UnitBackward(SummedRepeats(dq_HCD, repeats).mul_(QueryScale(inputs)), chunk.q), span,
             out.q);
  StoreChunk(UnitBackward(SummedRepeats(dk_HCD, repeats), chunk.k), span, out.k);

  // Of the exponents: what all gates between two tokens get adds to one of the two and is taken
  // from the other. fp64, since most of that cancels.
  const Tensor of_gates = dp_HCC.mul(p_HCC).add_(da_HCC.mul(chunk.a_HCC)).to(at::kDouble);
  const Tensor dk_k = RowSums(dk_state.mul(k)).to(at::kDouble);
  Tensor dc_HC1 = RowSums(of_gates).sub_(at::sum(of_gates, {1}).unsqueeze(2));
  dc_HC1.add_(RowSums(dq_state.mul(q))).add_(xw_k.mul(beta)).sub_(dk_k);
  const Tensor of_state = at::sum(dstate_HDE.mul(state_HDE), {1, 2}, /*keepdim=*/true);
  dc_HC1.narrow(1, span.count - 1, 1)
      .add_(at::sum(dk_k, {1}, /*keepdim=*/true))
      .add_(of_state.mul(chunk.all_H11));
  StoreDecayGradient(dc_HC1, span, out.g);

  dstate_HDE = dstate_HDE.mul(chunk.all_H11)
                   .baddbmm_(q.mul(chunk.from_HC1).transpose(1, 2), dout_HCE)
                   .baddbmm_(chunk.w_HCD.transpose(1, 2), dn_HCE, 1.0, -1.0);
}

void DocumentForward(const DeltaInputs& inputs, const Span& document, const Tensor& out) {
  Tensor state_HDE = ZeroState(inputs);
  ForChunks(document, [&](const Span& span) {
    const DeltaChunk chunk = MakeChunk(inputs, span);
    const Tensor new_HCE = NewValues(chunk, state_HDE);
    const Tensor out_HCE = at::bmm(chunk.q_HCD.mul(chunk.from_HC1), state_HDE);
    StoreChunk(out_HCE.baddbmm(DeltaScores(chunk), new_HCE), span, out);
    state_HDE = StateAfter(chunk, state_HDE, new_HCE);
  });
}

void DocumentBackward(const DeltaInputs& inputs, const Span& document, const Tensor& dout,
                      const DeltaGradients& gradients) {
  std::vector<std::pair<Span, Tensor>> chunks;  // with the states before them
  Tensor state_HDE = ZeroState(inputs);
  ForChunks(document, [&](const Span& span) {
    chunks.emplace_back(span, state_HDE);
    if (span.first + span.count == document.first + document.count) return;
    const DeltaChunk chunk = MakeChunk(inputs, span);
    state_HDE = StateAfter(chunk, state_HDE, NewValues(chunk, state_HDE));
  });
  Tensor dstate_HDE = ZeroState(inputs);
  while (!chunks.empty()) {
    const auto& [span, before] = chunks.back();
    ChunkBackward(inputs, span, ChunkHeads(dout, span), before, dstate_HDE, gradients);
    chunks.pop_back();
  }
}

}  // namespace

void GatedDelta(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                const Tensor& beta, const ops::Documents& documents) {
  CheckGatedDelta(q, k, v, g, beta, documents);
  CheckHeadsLike(out, v, "GatedDelta: out");
  const DeltaInputs all{q, k, v, g, beta};
  ForTasks(q.size(1), documents, [&](int64_t head, const Span& document) {
    DocumentForward(all.Of(head), document, all.OfValues(out, head));
  });
}

void GatedDeltaBackward(Tensor& dq, Tensor& dk, Tensor& dv, Tensor& dg, Tensor& dbeta,
                        const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& g, const Tensor& beta, const ops::Documents& documents) {
  CheckGatedDelta(q, k, v, g, beta, documents);
  CheckHeadsLike(dq, q, "GatedDeltaBackward: dq");
  CheckHeadsLike(dk, k, "GatedDeltaBackward: dk");
  CheckHeadsLike(dv, v, "GatedDeltaBackward: dv");
  CheckHeadsLike(dout, v, "GatedDeltaBackward: dout");
  CheckGates(dg, g.size(0), g.size(1), q, "GatedDeltaBackward: dg");
  CheckGates(dbeta, g.size(0), g.size(1), q, "GatedDeltaBackward: dbeta");
  const DeltaInputs all{q, k, v, g, beta};
  const DeltaGradients gradients{dq, dk, dv, dg, dbeta};
  ForTasks(q.size(1), documents, [&](int64_t head, const Span& document) {
    DocumentBackward(all.Of(head), document, all.OfValues(dout, head), gradients.Of(head));
  });
}

}  // namespace sft::engine::cpu
