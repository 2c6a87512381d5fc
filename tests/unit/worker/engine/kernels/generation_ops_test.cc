#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/unit/worker/engine/kernels/random_tensor.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

double Difference(const Tensor& a, const Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

Tensor ProductOf(const Tensor& a, const Tensor& weight, const Tensor& addend, double alpha,
                 at::ScalarType type) {
  Tensor out = at::empty({a.size(0), weight.size(0)}, a.options().dtype(type));
  ops::RowProduct(out, a, weight, addend, alpha, 64);
  return out;
}

TEST(RowProductTest, EqualsTheProductInDouble) {
  for (const int64_t inner : {1, 15, 16, 67}) {
    const Tensor a = Random({9, inner}, 1), weight = Random({37, inner}, 2);
    const Tensor addend = Random({9, 37}, 3);
    const Tensor expected = at::matmul(a.to(at::kDouble), weight.to(at::kDouble).t());
    EXPECT_LT(Difference(ProductOf(a, weight, {}, 1.0, at::kFloat), expected), 1e-5);
    EXPECT_LT(Difference(ProductOf(a, weight, addend, 0.5, at::kFloat), expected * 0.5 + addend),
              1e-5);
  }
}

TEST(RowProductTest, AnAddendMayBeTheResult) {
  const Tensor a = Random({5, 20}, 1), weight = Random({7, 20}, 2);
  Tensor out = Random({5, 7}, 3);
  const Tensor expected = ProductOf(a, weight, out.clone(), 2.0, at::kFloat);
  ops::RowProduct(out, a, weight, out, 2.0, 64);
  EXPECT_TRUE(at::equal(out, expected));
}

// Whatever the number of rows, their places among them, their distance and the threads.
TEST(RowProductTest, ARowHasTheSameBitsWhateverStandsBesideIt) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor a = Random({21, 203}, 1).to(type), weight = Random({333, 203}, 2).to(type);
    const Tensor all = ProductOf(a, weight, {}, 1.0, type);
    const int threads = at::get_num_threads();
    for (const int count : {1, threads}) {
      at::set_num_threads(count);
      for (int64_t first = 0; first < 21; ++first) {
        const int64_t rows = std::min<int64_t>(21 - first, 1 + first % 6);
        EXPECT_TRUE(at::equal(ProductOf(a.narrow(0, first, rows).clone(), weight, {}, 1.0, type),
                              all.narrow(0, first, rows)))
            << first;
      }
    }
    at::set_num_threads(threads);
    const Tensor wide = at::cat({a, Random({21, 5}, 3).to(type)}, 1);
    EXPECT_TRUE(at::equal(ProductOf(wide.narrow(1, 0, 203), weight, {}, 1.0, type), all));
  }
}

// Zeros beside the inner elements: those of an adapter that a row does without.
TEST(RowProductTest, ZerosBehindTheLastFactorChangeNoBit) {
  const Tensor a = Random({6, 29}, 1), weight = Random({11, 29}, 2);
  const Tensor wide_a = at::cat({a, at::full({6, 8}, 0.0)}, 1);
  const Tensor wide_weight = at::cat({weight, Random({11, 8}, 3)}, 1);
  EXPECT_TRUE(at::equal(ProductOf(wide_a, wide_weight, {}, 1.0, at::kFloat),
                        ProductOf(a, weight, {}, 1.0, at::kFloat)));
}

struct Pages {
  Tensor k, v, tables;
};

// Two requests of 40 tokens in pages of 16 that lie in no order.
constexpr int64_t kTokens = 40, kPage = 16, kPagesOfRequest = 3;
Pages InPages(const Tensor& keys, const Tensor& values) {
  const std::vector<int32_t> tables = {4, 1, 5, 0, 3, 2};
  const auto shape = std::vector<int64_t>{6, kPage, keys.size(2), keys.size(3)};
  Pages pages{at::full(shape, 1e9, keys.options()), at::full(shape, 1e9, keys.options()),
              at::tensor(at::ArrayRef<int32_t>(tables), at::kInt).view({2, kPagesOfRequest})};
  for (int64_t request = 0; request < 2; ++request) {
    for (int64_t position = 0; position < kTokens; ++position) {
      const int64_t page =
          tables[static_cast<size_t>(request * kPagesOfRequest + position / kPage)];
      pages.k[page][position % kPage].copy_(keys[request][position]);
      pages.v[page][position % kPage].copy_(values[request][position]);
    }
  }
  return pages;
}

TEST(PagedAttentionTest, EqualsSoftmaxOverTheKeysThatATokenSees) {
  constexpr int64_t kHeads = 4, kKeyHeads = 2, kSize = 24;
  constexpr double kScale = 0.3;
  const Tensor keys = Random({2, kTokens, kKeyHeads, kSize}, 1);
  const Tensor values = Random({2, kTokens, kKeyHeads, kSize}, 2);
  const Pages pages = InPages(keys, values);
  const std::vector<int64_t> places = {0, 0, 1, 39, 0, 15, 0, 16, 1, 20, 1, 3, 0, 39};
  const Tensor place = at::tensor(at::ArrayRef<int64_t>(places), at::kLong).view({-1, 2});
  const Tensor q = Random({place.size(0), kHeads, kSize}, 3);
  for (const int64_t window : {0, 1, 7, 40}) {
    Tensor out = at::empty(q.sizes(), q.options());
    ops::PagedAttention(out, q, pages.k, pages.v, pages.tables, place, kScale, window,
                        /*pieces=*/true, /*sinks=*/{});
    for (int64_t token = 0; token < q.size(0); ++token) {
      const int64_t request = places[static_cast<size_t>(2 * token)];
      const int64_t last = places[static_cast<size_t>(2 * token + 1)];
      const int64_t first = window > 0 ? std::max<int64_t>(0, last + 1 - window) : 0;
      for (int64_t head = 0; head < kHeads; ++head) {
        const int64_t key_head = head / (kHeads / kKeyHeads);
        const auto seen = [&](const Tensor& all) {
          return all[request]
              .narrow(0, first, last + 1 - first)
              .select(1, key_head)
              .to(at::kDouble);
        };
        const Tensor scores = at::matmul(seen(keys), q[token][head].to(at::kDouble)) * kScale;
        const Tensor expected = at::matmul(at::softmax(scores, 0), seen(values));
        EXPECT_LT(Difference(out[token][head], expected), 1e-5) << token << ", window " << window;
      }
    }
    // One token alone has the bits that it has beside others.
    Tensor alone = at::empty({1, kHeads, kSize}, q.options());
    ops::PagedAttention(alone, q.narrow(0, 4, 1), pages.k, pages.v, pages.tables,
                        place.narrow(0, 4, 1).contiguous(), kScale, window, /*pieces=*/true,
                        /*sinks=*/{});
    EXPECT_TRUE(at::equal(alone[0], out[4]));
  }
}

}  // namespace
}  // namespace sft::engine
