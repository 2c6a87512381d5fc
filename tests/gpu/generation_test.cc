#include <vector>

#include "tests/gpu/gpu_test.h"
#include "worker/engine/kernels/ops.h"

// Generation's operations against the CPU's, and the promise that rows do not see each other.

namespace sft::engine {
namespace {

class GenerationOpsTest : public GpuTest {};

at::Tensor ProductOf(const at::Tensor& a, const at::Tensor& weight, const at::Tensor& addend) {
  at::Tensor out = at::empty({a.size(0), weight.size(0)}, a.options());
  ops::RowProduct(out, a, weight, addend, 0.5);
  return out;
}

TEST_F(GenerationOpsTest, RowProductEqualsTheReference) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t rows : {1, 7, 64, 130}) {
      const at::Tensor a = Normal({rows, 576}, 1).to(type),
                       weight = Normal({1536, 576}, 2).to(type);
      const at::Tensor addend = Normal({rows, 1536}, 3).to(type);
      const at::Tensor expected =
          ProductOf(a.to(at::kFloat), weight.to(at::kFloat), addend.to(at::kFloat));
      const double tolerance = type == at::kFloat ? 1e-5 : 4e-3;
      EXPECT_LT(RelativeError(ProductOf(ToGpu(a), ToGpu(weight), ToGpu(addend)), expected),
                tolerance)
          << rows;
    }
  }
}

TEST_F(GenerationOpsTest, ARowOfAProductHasTheSameBitsWhateverStandsBesideIt) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a = ToGpu(Normal({150, 1024}, 1).to(type));
    const at::Tensor weight = ToGpu(Normal({2048, 1024}, 2).to(type));
    const at::Tensor all = ProductOf(a, weight, {});
    for (const int64_t first : {0, 1, 63, 64, 149}) {
      for (const int64_t count : {1, 3, 64}) {
        if (first + count > a.size(0)) continue;
        EXPECT_TRUE(
            SameBits(ProductOf(a.narrow(0, first, count), weight, {}), all.narrow(0, first, count)))
            << first << ", " << count;
      }
    }
  }
}

TEST_F(GenerationOpsTest, PagedAttentionEqualsTheReferenceAndDoesNotSeeItsNeighbours) {
  constexpr int64_t kPage = 16, kPages = 40;
  for (const int64_t size : {64, 80, 128, 256, 512}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor k = Normal({kPages, kPage, 2, size}, 1).to(type);
      const at::Tensor v = Normal({kPages, kPage, 2, size}, 2).to(type);
      const at::Tensor q = Normal({5, 8, size}, 3).to(type);
      const at::Tensor tables =
          at::arange(kPages, at::kInt).flip(0).view({2, kPages / 2}).contiguous();
      const at::Tensor places =
          at::tensor({0, 0, 1, 319, 0, 17, 1, 160, 0, 255}, at::kLong).view({5, 2});
      const double scale = 1.0 / std::sqrt(static_cast<double>(size));
      for (const int64_t window : {0, 33}) {
        at::Tensor expected = at::empty(q.sizes(), at::kFloat), out = ToGpu(at::empty_like(q));
        ops::PagedAttention(expected, q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), tables,
                            places, scale, window);
        ops::PagedAttention(out, ToGpu(q), ToGpu(k), ToGpu(v), ToGpu(tables), ToGpu(places), scale,
                            window);
        EXPECT_LT(RelativeError(out, expected), type == at::kFloat ? 1e-5 : 5e-3)
            << size << ", window " << window;
        at::Tensor alone = at::empty_like(out.narrow(0, 0, 1));
        ops::PagedAttention(alone, ToGpu(q.narrow(0, 3, 1)), ToGpu(k), ToGpu(v), ToGpu(tables),
                            ToGpu(places.narrow(0, 3, 1)), scale, window);
        EXPECT_TRUE(SameBits(alone, out.narrow(0, 3, 1)));
      }
    }
  }
}

}  // namespace
}  // namespace sft::engine
