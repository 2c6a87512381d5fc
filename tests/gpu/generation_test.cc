#include <vector>

#include "tests/gpu/gpu_test.h"
#include "worker/engine/kernels/ops.h"

// Generation's operations against the CPU's, and the promise that rows do not see each other.

namespace sft::engine {
namespace {

class GenerationOpsTest : public GpuTest {};

at::Tensor ProductOf(const at::Tensor& a, const at::Tensor& weight, const at::Tensor& addend) {
  at::Tensor out = at::empty({a.size(0), weight.size(0)}, a.options());
  ops::RowProduct(out, a, weight, addend, 0.5, 64);
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

TEST_F(GenerationOpsTest, SmallProductsHaveKernelsOfTheirOwn) {
  for (const auto& [outputs, inputs] :
       {std::pair<int64_t, int64_t>{16, 4096}, {4000, 16}, {56, 48}}) {
    const at::Tensor a = Normal({150, inputs}, 1).to(at::kBFloat16);
    const at::Tensor weight = Normal({outputs, inputs}, 2).to(at::kBFloat16);
    const at::Tensor addend = Normal({150, outputs}, 3).to(at::kBFloat16);
    const at::Tensor all = ProductOf(ToGpu(a), ToGpu(weight), ToGpu(addend));
    EXPECT_LT(RelativeError(
                  all, ProductOf(a.to(at::kFloat), weight.to(at::kFloat), addend.to(at::kFloat))),
              4e-3);
    for (const int64_t count : {1, 8, 9, 17, 40, 64}) {
      EXPECT_TRUE(SameBits(ProductOf(ToGpu(a).narrow(0, 70, count), ToGpu(weight),
                                     ToGpu(addend).narrow(0, 70, count)),
                           all.narrow(0, 70, count)))
          << count << " rows of " << outputs << " x " << inputs;
    }
  }
}

at::Tensor Nf4ProductOf(const at::Tensor& a, const ops::Nf4Codes& packed, const at::Tensor& addend,
                        int64_t tile) {
  at::Tensor out = at::empty(addend.sizes(), a.options());
  ops::Nf4RowProduct(out, a, packed.codes, packed.absmax, addend, tile);
  return out;
}

TEST_F(GenerationOpsTest, ProductsWithNf4EqualThoseWithItsValuesAndDoNotSeeTheirNeighbours) {
  for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{4096, 4096},
                                        {1000, 128},
                                        {48, 12288},
                                        {40, 576},
                                        {24576, 256}}) {
    const at::Tensor a = ToGpu(Normal({150, inputs}, 1).to(at::kBFloat16));
    const at::Tensor weight = ToGpu(Normal({outputs, inputs}, 2));
    const at::Tensor addend = ToGpu(Normal({150, outputs}, 3).to(at::kBFloat16));
    const ops::Nf4Codes nf4 = ops::Nf4Quantize(weight.view({-1}));
    at::Tensor values = at::empty({outputs, inputs}, a.options());
    ops::Nf4Dequantize(values, nf4.codes, nf4.absmax);
    const at::Tensor expected =
        at::addmm(addend.to(at::kFloat), a.to(at::kFloat), values.to(at::kFloat).t());
    const ops::Nf4Codes packed =
        ops::Nf4Prepack(nf4.codes.view({outputs, -1}), nf4.absmax.view({outputs, -1}));
    const at::Tensor all = Nf4ProductOf(a, packed, addend, 64);
    EXPECT_LT(RelativeError(all, expected), 4e-3) << outputs << " x " << inputs;
    EXPECT_LT(RelativeError(Nf4ProductOf(a, packed, addend, 512), expected), 4e-3);
    const at::Tensor wide = a.to(at::kFloat), wide_addend = addend.to(at::kFloat);
    ops::Nf4Dequantize(values = at::empty({outputs, inputs}, wide.options()), nf4.codes,
                       nf4.absmax);
    EXPECT_LT(RelativeError(Nf4ProductOf(wide, packed, wide_addend, 512),
                            at::addmm(wide_addend, wide, values.t())),
              1e-5);
    for (const int64_t count : {1, 8, 9, 17, 40, 64}) {
      EXPECT_TRUE(
          SameBits(Nf4ProductOf(a.narrow(0, 70, count), packed, addend.narrow(0, 70, count), 64),
                   all.narrow(0, 70, count)))
          << count << " rows of " << outputs << " x " << inputs;
    }
  }
}

// What attention to pages is run on: two requests of as many pages each, pages in any order.
struct Paged {
  at::Tensor k, v, tables;
  at::Tensor sinks;  // undefined: none
  int64_t kv_heads = 0, size = 0;

  Paged(int64_t heads, int64_t head_size, at::ScalarType type, int64_t pages = 40)
      : kv_heads(heads), size(head_size) {
    constexpr int64_t kPage = 16;
    k = Normal({pages, kPage, heads, head_size}, 1).to(type);
    v = Normal({pages, kPage, heads, head_size}, 2).to(type);
    tables = at::arange(pages, at::kInt).flip(0).view({2, pages / 2}).contiguous();
  }
  at::Tensor Reference(const at::Tensor& q, const at::Tensor& places, int64_t window) const {
    at::Tensor out = at::empty(q.sizes(), at::kFloat);
    ops::PagedAttention(out, q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), tables, places,
                        Scale(), window, true, sinks);
    return out;
  }
  at::Tensor OnGpu(const at::Tensor& q, const at::Tensor& places, int64_t window,
                   bool pieces) const {
    at::Tensor out = ToGpu(at::empty_like(q));
    ops::PagedAttention(out, ToGpu(q), ToGpu(k), ToGpu(v), ToGpu(tables), ToGpu(places), Scale(),
                        window, pieces, sinks.defined() ? ToGpu(sinks) : sinks);
    return out;
  }
  double Scale() const { return 1.0 / std::sqrt(static_cast<double>(size)); }
};

at::Tensor PlacesOf(const std::vector<int64_t>& numbers) {
  return at::tensor(at::ArrayRef<int64_t>(numbers), at::kLong).view({-1, 2});
}

TEST_F(GenerationOpsTest, PagedAttentionEqualsTheReferenceAndDoesNotSeeItsNeighbours) {
  const at::Tensor places = PlacesOf({0, 0, 1, 319, 0, 17, 1, 160, 0, 255, 0, 256, 1, 15});
  for (const int64_t size : {32, 64, 80, 96, 128, 256, 512}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const int64_t group : {1, 3, 4, 16}) {
        const Paged paged(2, size, type);
        const at::Tensor q = Normal({places.size(0), 2 * group, size}, 3).to(type);
        for (const int64_t window : {0, 33}) {
          for (const bool pieces : {false, true}) {
            const at::Tensor out = paged.OnGpu(q, places, window, pieces);
            EXPECT_LT(RelativeError(out, paged.Reference(q, places, window)),
                      type == at::kFloat ? 1e-5 : 5e-3)
                << size << ", window " << window << ", group " << group << ", pieces " << pieces;
            const at::Tensor alone =
                paged.OnGpu(q.narrow(0, 3, 1), places.narrow(0, 3, 1).contiguous(), window, pieces);
            EXPECT_TRUE(SameBits(alone, out.narrow(0, 3, 1)));
          }
        }
      }
    }
  }
}

// Tokens of a prompt, however they are cut, beside another's and beside padding.
TEST_F(GenerationOpsTest, PiecesOfAPromptGiveTheBitsOfTheWhole) {
  for (const int64_t size : {64, 128, 256}) {
    const Paged paged(2, size, at::kBFloat16);
    for (const int64_t group : {1, 4, 7}) {
      std::vector<int64_t> numbers;
      for (int64_t i = 0; i < 300; ++i) numbers.insert(numbers.end(), {0, i});
      for (int64_t i = 100; i < 117; ++i) numbers.insert(numbers.end(), {1, i});
      for (int64_t i = 0; i < 9; ++i) numbers.insert(numbers.end(), {0, -1});
      const at::Tensor places = PlacesOf(numbers);
      const at::Tensor q = Normal({places.size(0), 2 * group, size}, 3).to(at::kBFloat16);
      for (const int64_t window : {0, 50}) {
        const at::Tensor whole = paged.OnGpu(q, places, window, true);
        EXPECT_LT(RelativeError(whole, paged.Reference(q, places, window)), 5e-3) << size;
        EXPECT_EQ(at::count_nonzero(whole.narrow(0, 317, 9)).item<int64_t>(), 0);
        for (const int64_t first : {1, 13, 299, 300}) {
          const int64_t count = std::min<int64_t>(70, 317 - first);
          const at::Tensor part =
              paged.OnGpu(q.narrow(0, first, count), places.narrow(0, first, count), window, true);
          EXPECT_TRUE(SameBits(part, whole.narrow(0, first, count)))
              << size << ", from " << first << ", group " << group << ", window " << window;
        }
      }
    }
  }
}

// Where small chunks of keys end and large ones begin.
TEST_F(GenerationOpsTest, PagedAttentionTakesSinks) {
  const at::Tensor places = PlacesOf({0, 0, 1, 319, 0, 17, 1, 160, 0, -1});
  for (const int64_t size : {64, 80}) {  // on tensor cores, and not
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      Paged paged(2, size, type);
      paged.sinks = at::tensor({-20.0F, 0.0F, 1.5F, 4.0F, 60.0F, 2.0F, -1.0F, 0.5F});
      const at::Tensor q = Normal({places.size(0), 8, size}, 3).to(type);
      for (const int64_t window : {0, 33}) {
        for (const bool pieces : {false, true}) {
          EXPECT_LT(RelativeError(paged.OnGpu(q, places, window, pieces),
                                  paged.Reference(q, places, window)),
                    type == at::kFloat ? 1e-5 : 5e-3)
              << size << ", window " << window << ", pieces " << pieces;
        }
      }
    }
  }
}

TEST_F(GenerationOpsTest, PagedAttentionOfLongRequestsEqualsTheReference) {
  const at::Tensor places =
      PlacesOf({0, 127, 0, 128, 1, 1022, 0, 1023, 0, 1024, 1, 1279, 1, 1280, 0, 2047});
  for (const int64_t size : {64, 128}) {
    const Paged paged(2, size, at::kBFloat16, 256);
    const at::Tensor q = Normal({places.size(0), 8, size}, 3).to(at::kBFloat16);
    for (const int64_t window : {0, 300, 1100}) {
      const at::Tensor out = paged.OnGpu(q, places, window, false);
      EXPECT_LT(RelativeError(out, paged.Reference(q, places, window)), 5e-3)
          << size << ", window " << window;
      for (const int64_t token : {3, 4, 7}) {
        const at::Tensor alone = paged.OnGpu(
            q.narrow(0, token, 1), places.narrow(0, token, 1).contiguous(), window, false);
        EXPECT_TRUE(SameBits(alone, out.narrow(0, token, 1))) << token;
      }
    }
  }
}

// A cache with numbers that are none where nothing was written.
TEST_F(GenerationOpsTest, WhatWasNotWrittenIsNotRead) {
  for (const int64_t size : {128, 512}) {
    Paged paged(2, size, at::kBFloat16);
    const at::Tensor places = PlacesOf({0, 20, 0, 21});
    const at::Tensor q = Normal({2, 8, size}, 3).to(at::kBFloat16);
    // Position 21 of request 0 is token 5 of its second page, number 38.
    for (at::Tensor* kept : {&paged.k, &paged.v}) {
      kept->narrow(0, 38, 1).narrow(1, 6, 10).fill_(std::nan(""));
      kept->narrow(0, 0, 38).fill_(std::nan(""));
    }
    for (const bool pieces : {false, true}) {
      EXPECT_TRUE(at::isfinite(paged.OnGpu(q, places, 0, pieces)).all().item<bool>())
          << size << pieces;
    }
  }
}

TEST_F(GenerationOpsTest, ARequestOfNoNumbersLeavesItsNeighboursAlone) {
  for (const int64_t size : {64, 128}) {
    Paged paged(2, size, at::kBFloat16);
    for (at::Tensor* kept : {&paged.k, &paged.v}) {  // request 0 has pages 20 to 39
      kept->narrow(0, 20, 20).fill_(std::nan(""));
    }
    const at::Tensor places = PlacesOf({0, 30, 0, 31, 1, 7, 1, 8, 0, 32});
    const at::Tensor q = Normal({5, 8, size}, 3).to(at::kBFloat16);
    for (const bool pieces : {false, true}) {
      const at::Tensor all = paged.OnGpu(q, places, 0, pieces);
      const at::Tensor alone =
          paged.OnGpu(q.narrow(0, 2, 2), places.narrow(0, 2, 2).contiguous(), 0, pieces);
      EXPECT_TRUE(at::isfinite(alone).all().item<bool>());
      EXPECT_TRUE(SameBits(alone, all.narrow(0, 2, 2))) << size << ", pieces " << pieces;
      EXPECT_TRUE(at::isnan(all.narrow(0, 0, 2)).all().item<bool>());
    }
  }
}

}  // namespace
}  // namespace sft::engine
