#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "worker/engine/kernels/ops.h"

// Attention whose rows have one more score, their head's sink, beside the formulas in fp64.

namespace sft::engine {
namespace {

using at::Tensor;

constexpr int64_t kHeads = 4, kKvHeads = 2, kSize = 8;
constexpr double kScale = 0.4;

struct SinkCase {
  Tensor q, k, v, sinks, dout;
  std::vector<int64_t> lengths;
  Tensor offsets;
  int64_t window;

  explicit SinkCase(at::ScalarType type, std::vector<int64_t> of, int64_t sees)
      : lengths(std::move(of)), window(sees) {
    at::manual_seed(5);
    std::vector<int> ends{0};
    for (const int64_t length : lengths) ends.push_back(ends.back() + static_cast<int>(length));
    offsets = at::tensor(ends, at::kInt);
    const int64_t tokens = ends.back();
    q = at::randn({tokens, kHeads, kSize}).to(type);
    k = at::randn({tokens, kKvHeads, kSize}).to(type);
    v = at::randn({tokens, kKvHeads, kSize}).to(type);
    dout = at::randn({tokens, kHeads, kSize}).to(type);
    sinks = at::tensor({-3.0F, 0.0F, 2.5F, 40.0F});  // of no weight, of some, of nearly all
  }
  ops::Documents documents() const { return {offsets, lengths}; }
};

struct Result {
  Tensor out, dq, dk, dv, dsinks;
};

Result Compute(const SinkCase& c) {
  Tensor out = at::empty_like(c.q);
  Tensor lse = ops::Attention(out, c.q, c.k, c.v, c.documents(), kScale, c.window);
  ops::AddSinks(out, lse, c.sinks, c.documents());
  Result r{out, at::empty_like(c.q), at::empty_like(c.k), at::empty_like(c.v), {}};
  ops::AttentionBackward(r.dq, r.dk, r.dv, c.dout, c.q, c.k, c.v, out, lse, c.documents(), kScale,
                         c.window);
  r.dsinks = ops::SinkGradient(c.dout, out, lse, c.sinks, c.documents());
  return r;
}

// One document and head after the other.
Result Reference(const SinkCase& c) {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  Result r{at::empty(c.q.sizes(), options), at::zeros(c.q.sizes(), options),
           at::zeros(c.k.sizes(), options), at::zeros(c.v.sizes(), options),
           at::zeros({kHeads}, options)};
  int64_t first = 0;
  for (const int64_t length : c.lengths) {
    const Tensor position = at::arange(length, options);
    const Tensor distance = position.unsqueeze(1) - position.unsqueeze(0);
    Tensor hidden = distance.lt(0);
    if (c.window > 0) hidden = hidden.logical_or(distance.ge(c.window));
    for (int64_t head = 0; head < kHeads; ++head) {
      const auto rows = [&](const Tensor& x, int64_t which) {
        return x.narrow(0, first, length).select(1, which).to(at::kDouble);
      };
      const int64_t key = head / (kHeads / kKvHeads);
      const Tensor q = rows(c.q, head), k = rows(c.k, key), v = rows(c.v, key);
      const Tensor dy = rows(c.dout, head);
      const Tensor scores = at::matmul(q, k.t()).mul(kScale).masked_fill(hidden, -INFINITY);
      const Tensor sink = c.sinks[head].to(at::kDouble).expand({length, 1});
      const Tensor all = at::softmax(at::cat({scores, sink}, 1), 1);
      const Tensor p = all.narrow(1, 0, length);
      const Tensor dp = at::matmul(dy, v.t());
      const Tensor along = (dp * p).sum({1}, /*keepdim=*/true);
      const Tensor ds = (dp - along) * p * kScale;
      r.out.narrow(0, first, length).select(1, head).copy_(at::matmul(p, v));
      r.dq.narrow(0, first, length).select(1, head).copy_(at::matmul(ds, k));
      r.dk.narrow(0, first, length).select(1, key).add_(at::matmul(ds.t(), q));
      r.dv.narrow(0, first, length).select(1, key).add_(at::matmul(p.t(), dy));
      r.dsinks[head].sub_((along * all.narrow(1, length, 1)).sum());
    }
    first += length;
  }
  return r;
}

void ExpectNear(const Tensor& actual, const Tensor& expected, double tolerance, const char* what) {
  const double scale = expected.abs().max().item<double>();
  const double error = (actual.to(at::kDouble) - expected).abs().max().item<double>();
  EXPECT_LE(error, tolerance * scale) << what;
}

TEST(SinksTest, OutputAndGradientsAreThoseOfTheWiderSoftmax) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const double tolerance = type == at::kFloat ? 2e-6 : 2e-2;
    for (const int64_t window : {0, 5}) {
      const SinkCase c(type, {1, 19, 300}, window);
      const Result actual = Compute(c), expected = Reference(c);
      ExpectNear(actual.out, expected.out, tolerance, "out");
      ExpectNear(actual.dq, expected.dq, tolerance, "dq");
      ExpectNear(actual.dk, expected.dk, tolerance, "dk");
      ExpectNear(actual.dv, expected.dv, tolerance, "dv");
      // A sum over all tokens, whose parts mostly cancel.
      ExpectNear(actual.dsinks, expected.dsinks, 5 * tolerance, "dsinks");
    }
  }
}

TEST(SinksTest, PagesGiveWhatRowsGive) {
  constexpr int64_t kPage = 16, kTokens = 40;
  for (const int64_t window : {0, 7}) {
    const SinkCase c(at::kFloat, {kTokens}, window);
    const Result rows = Compute(c);
    Tensor k_pages = at::zeros({4, kPage, kKvHeads, kSize}), v_pages = at::zeros_like(k_pages);
    const Tensor tables = at::tensor({2, 0, 3}, at::kInt).view({1, 3});
    std::vector<int64_t> slots, places;
    for (int64_t i = 0; i < kTokens; ++i) {
      slots.push_back(tables[0][i / kPage].item<int64_t>() * kPage + i % kPage);
      places.insert(places.end(), {0, i});
    }
    ops::WritePages(k_pages, v_pages, at::tensor(slots, at::kLong), c.k, c.v);
    Tensor out = at::empty_like(c.q);
    ops::PagedAttention(out, c.q, k_pages, v_pages, tables,
                        at::tensor(places, at::kLong).view({-1, 2}), kScale, window, true, c.sinks);
    ExpectNear(out, rows.out.to(at::kDouble), 2e-6, "pages");
  }
}

}  // namespace
}  // namespace sft::engine
