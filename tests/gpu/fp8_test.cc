// FP8 on the GPU. What converts is compared with the CPU kernels byte by byte.
#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "tests/gpu/fp8_data.h"
#include "tests/gpu/gpu_test.h"
#include "worker/engine/kernels/nf4_tables.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

class Fp8GpuTest : public GpuTest {};

// Float8 rows on the CPU and on the GPU, in buffers of bytes that are all 0x2a.
struct Outputs {
  Outputs(int64_t rows, int64_t width, const Lay& lay)
      : cpu_bytes(at::full({rows, lay.before + width + lay.behind}, 0x2a, at::kByte)),
        gpu_bytes(ToGpu(cpu_bytes)),
        cpu(cpu_bytes.view(at::kFloat8_e4m3fn).narrow(1, lay.before, width)),
        gpu(gpu_bytes.view(at::kFloat8_e4m3fn).narrow(1, lay.before, width)) {}
  // What lies beside the rows included.
  bool AreSame() const { return SameBits(gpu_bytes, cpu_bytes); }
  Tensor cpu_bytes, gpu_bytes, cpu, gpu;
};

// `values` in each type and lay.
void ExpectSameQuantised(const Tensor& values) {
  const int64_t rows = values.size(0), width = values.size(1);
  const Tensor given = Uniform({rows}, 3, 1e-3, 2e-2);
  for (const auto type : kFp8InputTypes) {
    const Tensor x = values.to(type);
    for (const Lay& lay : LaysOf(width)) {
      const Tensor in = Placed(x, lay), gpu_in = Placed(ToGpu(x), lay);
      Outputs own(rows, width, lay), with(rows, width, lay);
      Tensor scale = at::full({rows}, 5.0f), gpu_scale = ToGpu(at::full({rows}, -5.0f));
      ops::Fp8Quantize(own.cpu, scale, in);
      ops::Fp8Quantize(own.gpu, gpu_scale, gpu_in);
      EXPECT_TRUE(SameBits(gpu_scale, scale)) << type << width << " before " << lay.before;
      EXPECT_TRUE(own.AreSame()) << type << width << " before " << lay.before;
      // Scales so small that many values saturate.
      ops::Fp8QuantizeWith(with.cpu, in, given);
      ops::Fp8QuantizeWith(with.gpu, gpu_in, ToGpu(given));
      EXPECT_TRUE(with.AreSame()) << type << width << " before " << lay.before;
    }
  }
}

class Fp8RowsTest : public Fp8GpuTest, public ::testing::WithParamInterface<int64_t> {};

TEST_P(Fp8RowsTest, QuantisesToTheBitsOfTheCpuKernel) {
  ExpectSameQuantised(Awkward(11, GetParam()));
}

// Both ends of every way to share a row out to threads, in bf16 (8 elements a vector) and in fp32
// (4), and the widths of Qwen3.
INSTANTIATE_TEST_SUITE_P(Widths, Fp8RowsTest,
                         ::testing::Values(1, 3, 4, 8, 17, 96, 508, 512, 520, 1000, 1024, 1032,
                                           2048, 2056, 4096, 4104, 5120, 8192, 8200, 12288, 16384,
                                           16392, 25600, 32768, 32776, 49152, 65536, 65544, 151936,
                                           151937),
                         ::testing::PrintToStringParamName());

TEST_F(Fp8GpuTest, QuantisesManyRowsToTheBitsOfTheCpuKernel) {
  for (const int64_t width : {7, 256}) {
    ExpectSameQuantised(Awkward(11, width).repeat({1819, 1}));
  }
}

// `values` [rows, width] by columns, in each type and lay.
void ExpectSameColumns(const Tensor& values) {
  const int64_t tokens = values.size(0), width = values.size(1);
  const int64_t padded = (tokens + 15) / 16 * 16;
  for (const auto type : kFp8InputTypes) {
    const Tensor x = values.to(type);
    for (const Lay& lay : LaysOf(width)) {
      const Tensor in = Placed(x, lay), gpu_in = Placed(ToGpu(x), lay);
      for (const int64_t to : {tokens, padded, padded + 144}) {
        for (const Lay& out_lay : {Lay{0, 0}, Lay{16, 32}, Lay{1, 2}}) {
          Outputs out(width, to, out_lay);
          Tensor scale = at::full({width}, 5.0f), gpu_scale = ToGpu(at::full({width}, -5.0f));
          ops::Fp8QuantizeColumns(out.cpu, scale, in);
          ops::Fp8QuantizeColumns(out.gpu, gpu_scale, gpu_in);
          EXPECT_TRUE(SameBits(gpu_scale, scale)) << type << values.sizes() << lay.before;
          EXPECT_TRUE(out.AreSame()) << type << values.sizes() << " to " << to << " before "
                                     << lay.before << " and " << out_lay.before;
        }
      }
    }
  }
}

// Columns of every kind that goes wrong; less than a tile, some tiles, and several slices.
TEST_F(Fp8GpuTest, QuantisesColumnsToTheBitsOfTheCpuKernel) {
  for (const auto& [tokens, width] : std::vector<std::pair<int64_t, int64_t>>{{1, 16},
                                                                              {16, 1},
                                                                              {7, 64},
                                                                              {64, 7},
                                                                              {128, 128},
                                                                              {130, 144},
                                                                              {257, 264},
                                                                              {1000, 96},
                                                                              {17, 520},
                                                                              {5000, 48}}) {
    ExpectSameColumns(Awkward(width, tokens).t().contiguous());
  }
}

TEST_F(Fp8GpuTest, QuantisesManyColumnsToTheBitsOfTheCpuKernel) {
  ExpectSameColumns(Normal({20011, 272}, 5));
  ExpectSameColumns(Normal({300, 12288}, 6));
}

TEST_F(Fp8GpuTest, QuantisingColumnsTakesNoRows) {
  Outputs out(24, 16, {0, 0});
  Tensor scale = ToGpu(at::full({24}, -5.0f));
  ops::Fp8QuantizeColumns(out.gpu, scale, ToGpu(at::empty({0, 24}, at::kBFloat16)));
  EXPECT_TRUE(SameBits(scale, at::ones({24})));
  EXPECT_TRUE((out.gpu_bytes == 0).all().item<bool>());
}

TEST_F(Fp8GpuTest, QuantisingTakesNoRowsAndNoColumns) {
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>(0, 64), {3, 0}}) {
    Outputs out(rows, width, {0, 16});
    Tensor scale = ToGpu(at::full({rows}, -5.0f));
    const Tensor x = ToGpu(at::empty({rows, width}, at::kBFloat16));
    ops::Fp8Quantize(out.gpu, scale, x);
    EXPECT_TRUE(SameBits(scale, at::ones({rows})));
    ops::Fp8QuantizeWith(out.gpu, x, scale);
    EXPECT_TRUE(out.AreSame());
  }
}

TEST_F(Fp8GpuTest, EveryBf16ConvertsAsOnTheCpu) {
  const Tensor all = at::arange(0, 1 << 16, at::kInt).to(at::kShort).view(at::kBFloat16);
  const Tensor x = all.expand({6, 1 << 16}).contiguous();
  const Tensor scale = at::tensor({1.0f, 0.3f, 7e-5f, 3e30f, 2e-38f, 1e38f});
  for (const Lay& lay : LaysOf(1 << 16)) {
    Outputs out(6, 1 << 16, lay);
    ops::Fp8QuantizeWith(out.cpu, x, scale);
    ops::Fp8QuantizeWith(out.gpu, Placed(ToGpu(x), lay), ToGpu(scale));
    EXPECT_TRUE(out.AreSame()) << "before " << lay.before;
  }
}

TEST_F(Fp8GpuTest, TiesAndTheirNeighboursConvertAsOnTheCpu) {
  // Between all neighbours of FP8, the last being 448 and what would be 480: the middle, and one
  // step of fp32 to either side.
  std::vector<float> values;
  const Tensor fp8 = at::arange(0, 127, at::kInt).to(at::kByte).view(at::kFloat8_e4m3fn);
  const Tensor plain = fp8.to(at::kFloat);
  for (int i = 0; i < 127; ++i) {
    const float low = plain[i].item<float>();
    const float high = i == 126 ? 480.0f : plain[i + 1].item<float>();
    const float middle = (low + high) / 2;
    for (const float x : {low, std::nextafter(middle, low), middle, std::nextafter(middle, high),
                          std::nextafter(high, low)}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
  const auto width = static_cast<int64_t>(values.size());
  const Tensor x = at::tensor(values).view({1, width});
  for (const Lay& lay : LaysOf(width)) {
    Outputs out(1, width, lay);
    ops::Fp8QuantizeWith(out.cpu, x, at::ones({1}));
    ops::Fp8QuantizeWith(out.gpu, Placed(ToGpu(x), lay), ToGpu(at::ones({1})));
    EXPECT_TRUE(out.AreSame()) << "before " << lay.before;
  }
}

// ---- NF4 ----

void ExpectSameFromNf4(int64_t rows, int64_t columns, const std::vector<Lay>& lays) {
  const RandomNf4 weight(rows * columns);
  for (const bool transposed : {false, true}) {
    const int64_t height = transposed ? columns : rows, width = transposed ? rows : columns;
    // Some values saturate.
    const Tensor scale = Uniform({height}, 25, 1e-4, 2e-3);
    for (const bool nested : {false, true}) {
      for (const Lay& lay : lays) {
        Outputs out(height, width, lay);
        weight.Expand(out.cpu, scale, nested, transposed);
        weight.Expand(out.gpu, scale, nested, transposed);
        EXPECT_TRUE(out.AreSame()) << rows << "x" << columns << (nested ? " nested" : " plain")
                                   << (transposed ? " transposed" : "") << " before " << lay.before;
      }
    }
  }
}

TEST_F(Fp8GpuTest, Nf4WeightsOfAnyShapeBecomeTheBitsOfTheCpuKernel) {
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1},     {5, 3},      {7, 9},      {37, 101},  {1, 16},    {16, 1},
           {16, 16},   {33, 16},    {2000, 16},  {17, 48},   {48, 1040}, {64, 128},
           {128, 128}, {144, 240},  {300, 272},  {272, 300}, {129, 64},  {1024, 64},
           {16, 4096}, {1000, 512}, {257, 1536}, {40, 8},    {1536, 24}, {240, 136}}) {
    std::vector<Lay> lays = LaysOf(columns);
    lays.push_back({16, (16 - rows % 16) % 16 + (16 - columns % 16) % 16 + 16});
    ExpectSameFromNf4(rows, columns, lays);
  }
}

TEST_F(Fp8GpuTest, Nf4WeightsOfManyTilesBecomeTheBitsOfTheCpuKernel) {
  // The spare columns of the adapters of a Qwen3-8B.
  for (const auto& [rows, columns] :
       std::vector<std::pair<int64_t, int64_t>>{{4096, 4096}, {6144, 4096}, {1024, 12288}}) {
    ExpectSameFromNf4(rows, columns, {{0, 64}});
  }
}

TEST_F(Fp8GpuTest, Nf4CodesNeedNoAlignment) {
  constexpr int64_t kRows = 144, kColumns = 272;
  const RandomNf4 weight(kRows * kColumns);
  const Tensor codes = ToGpu(at::cat({at::zeros({1}, at::kByte), weight.codes}));
  for (const bool transposed : {false, true}) {
    const int64_t height = transposed ? kColumns : kRows, width = transposed ? kRows : kColumns;
    const Tensor scale = Uniform({height}, 25, 1e-4, 2e-3);
    Outputs out(height, width, {0, 16});
    weight.Expand(out.cpu, scale, false, transposed);
    ops::Fp8FromNf4(out.gpu, codes.narrow(0, 1, weight.codes.numel()), ToGpu(weight.absmax), {}, {},
                    ToGpu(scale), transposed);
    EXPECT_TRUE(out.AreSame()) << transposed;
  }
}

TEST_F(Fp8GpuTest, OffsetsBeyondThirtyTwoBitsAreRight) {
  constexpr int64_t kRows = 524304 + 128, kColumns = 4096, kLast = 48;
  static_assert((kRows - kLast) * kColumns > int64_t{1} << 31);
  const auto on_gpu = at::TensorOptions(at::Device(at::kCUDA, 0));
  // The last rows of a huge matrix are those of a small one.
  const RandomNf4 small(kLast * kColumns);
  const Tensor codes = at::zeros({kRows * kColumns / 2}, on_gpu.dtype(at::kByte));
  const Tensor absmax = at::zeros({kRows * kColumns / kNf4Block}, on_gpu.dtype(at::kFloat));
  codes.narrow(0, codes.numel() - small.codes.numel(), small.codes.numel()).copy_(small.codes);
  absmax.narrow(0, absmax.numel() - small.absmax.numel(), small.absmax.numel()).copy_(small.absmax);
  for (const bool transposed : {false, true}) {
    const int64_t height = transposed ? kColumns : kRows, width = transposed ? kRows : kColumns;
    const Tensor scale = at::full({height}, 5e-4, on_gpu.dtype(at::kFloat));
    const Tensor bytes = at::full({height, width}, 0x2a, on_gpu.dtype(at::kByte));
    Tensor out = bytes.view(at::kFloat8_e4m3fn);
    ops::Fp8FromNf4(out, codes, absmax, {}, {}, scale, transposed);
    const int64_t small_height = transposed ? kColumns : kLast;
    Tensor expected = at::empty({small_height, transposed ? kLast : kColumns}, at::kFloat8_e4m3fn);
    small.Expand(expected, at::full({small_height}, 5e-4, at::kFloat), false, transposed);
    EXPECT_TRUE(
        SameBits(bytes.narrow(transposed ? 1 : 0, kRows - kLast, kLast), expected.view(at::kByte)))
        << transposed;
  }
  const Tensor x = at::zeros({kRows, kColumns}, on_gpu.dtype(at::kBFloat16));
  const Tensor last = Awkward(kLast, kColumns).to(at::kBFloat16);
  x.narrow(0, kRows - kLast, kLast).copy_(last);
  Tensor scale = at::empty({kRows}, on_gpu.dtype(at::kFloat)), expected_scale = at::empty({kLast});
  const Tensor bytes = at::full({kRows, kColumns}, 0x2a, on_gpu.dtype(at::kByte));
  Tensor out = bytes.view(at::kFloat8_e4m3fn);
  Tensor expected = at::empty({kLast, kColumns}, at::kFloat8_e4m3fn);
  ops::Fp8Quantize(expected, expected_scale, last);
  ops::Fp8Quantize(out, scale, x);
  const Tensor written = bytes.narrow(0, kRows - kLast, kLast);
  EXPECT_TRUE(SameBits(scale.narrow(0, kRows - kLast, kLast), expected_scale));
  EXPECT_TRUE(SameBits(written, expected.view(at::kByte)));
  written.fill_(0x2a);
  ops::Fp8QuantizeWith(out, x, scale);
  EXPECT_TRUE(SameBits(written, expected.view(at::kByte)));
}

// ---- adapters ----

TEST_F(Fp8GpuTest, PlaceFactorsHasTheBitsOfTheCpuKernelAndChangesNothingElse) {
  struct Case {
    int64_t columns;
    std::vector<int64_t> ranks;
    int64_t gap;
  };
  for (const Case& c : std::vector<Case>{
           {4096, {64}, 64},
           {4096, {16, 8, 24}, 64},
           {256, std::vector<int64_t>(9, 8), 64},
           {256, std::vector<int64_t>(9, 16), 8},
           {101, {3}, 5},
           {96, {1, 7, 5}, 0},
           {160, {8, 4, 12}, 64},  // vectors in fp32 alone
           {17, {3, 1, 4, 1, 5, 9, 2, 6, 5}, 3},
       }) {
    for (const auto type : kFp8InputTypes) {
      const Adapters adapters(c.columns, c.ranks, type, c.gap);
      for (const bool transposed : {false, true}) {
        const int64_t height = transposed ? c.columns : adapters.rows;
        const int64_t width = (transposed ? adapters.rows : c.columns) + adapters.rank;
        // Some values saturate.
        const Tensor row_scale = Uniform({height}, 80, 2e-3, 0.5);
        for (const Lay& lay : LaysOf(width)) {
          Outputs matrix(height, width, lay);
          ops::Fp8PlaceFactors(matrix.cpu, row_scale, adapters.a, adapters.b, adapters.first_row,
                               0.7, transposed);
          ops::Fp8PlaceFactors(matrix.gpu, ToGpu(row_scale), adapters.gpu_a, adapters.gpu_b,
                               adapters.first_row, 0.7, transposed);
          EXPECT_TRUE(matrix.AreSame()) << type << " " << c.ranks.size() << " members of "
                                        << c.columns << " columns, transposed " << transposed;
          const int64_t own = width - adapters.rank;
          EXPECT_TRUE((matrix.gpu_bytes.narrow(1, lay.before, own) == 0x2a).all().item<bool>());
        }
      }
    }
  }
}

}  // namespace
}  // namespace sft::engine
