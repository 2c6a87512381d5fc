// FP8 on the GPU. What converts is compared with the CPU kernels byte by byte; products with fp64.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/gpu/gpu_test.h"
#include "worker/engine/kernels/nf4_tables.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class Fp8GpuTest : public GpuTest {};

// Where rows lie in a buffer: elements before each and behind each.
struct Lay {
  int64_t before = 0, behind = 0;
};
// Dense; on multiples of 64 elements with columns to spare; on odd elements.
std::vector<Lay> LaysOf(int64_t width) {
  return {{0, 0}, {64, (64 - width % 64) % 64 + 64}, {1, width % 2 == 0 ? 2 : 3}};
}

// Rows in a buffer full of 77, which no kernel may read.
Tensor Placed(const Tensor& x, const Lay& lay) {
  const int64_t width = x.size(1);
  const Tensor buffer = at::full({x.size(0), lay.before + width + lay.behind}, 77.0, x.options());
  buffer.narrow(1, lay.before, width).copy_(x);
  return buffer.narrow(1, lay.before, width);
}

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

Tensor Uniform(at::IntArrayRef sizes, uint64_t seed, double from, double to) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::empty(sizes, at::kFloat).uniform_(from, to, generator);
}
Tensor RandomBytes(int64_t count, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::empty({count}, at::kByte).random_(0, 256, generator);
}

// Rows of every kind that goes wrong, over and over.
Tensor Awkward(int64_t rows, int64_t width) {
  Tensor x = Normal({rows, width}, 11 + static_cast<uint64_t>(width));
  for (int64_t row = 0; row < rows; ++row) {
    Tensor values = x[row];
    const int64_t place = (row * 7919) % width;
    switch (row % 10) {
      case 1:
        values.zero_();
        break;
      case 2:
        values.fill_(-0.0);
        break;
      case 3:
        values.mul_(1e-40);  // subnormal
        break;
      case 4:
        values.mul_(1e-36);  // a scale near the smallest
        break;
      case 5:
        values.mul_(2e38).clamp_(-3.3e38, 3.3e38);
        break;
      case 6:
        values[place] = kNaN;
        break;
      case 7:
        values[place] = -kInfinity;
        break;
      case 8:
        values[width - 1] = -3e4;  // the last element decides; the rest is subnormal in FP8
        break;
      case 9:
        values.fill_(kNaN);
        break;
      default:
        break;
    }
  }
  return x;
}

// `values` in each type and lay.
void ExpectSameQuantised(const Tensor& values) {
  const int64_t rows = values.size(0), width = values.size(1);
  const Tensor given = Uniform({rows}, 3, 1e-3, 2e-2);
  for (const auto type : kTypes) {
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
                                           151937));

TEST_F(Fp8GpuTest, QuantisesManyRowsToTheBitsOfTheCpuKernel) {
  for (const int64_t width : {7, 256}) {
    ExpectSameQuantised(Awkward(11, width).repeat({1819, 1}));
  }
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

// Codes and absmax of a weight, at random: all codes occur, and absmax of both signs and zero.
struct RandomNf4 {
  explicit RandomNf4(int64_t elements) : codes(RandomBytes((elements + 1) / 2, 21)) {
    const int64_t blocks = (elements + kNf4Block - 1) / kNf4Block;
    absmax = Uniform({blocks}, 22, 0.0, 0.1);
    absmax.slice(0, 0, blocks, 5).zero_();
    absmax_codes = RandomBytes(blocks, 23);
    nested_absmax = Uniform({(blocks + kNestedBlock - 1) / kNestedBlock}, 24, 0.0, 0.06);
    offset = at::scalar_tensor(0.031, at::kFloat);
  }
  // Writes the weight into `out`, wherever that lies.
  void Expand(Tensor& out, const Tensor& scale, bool nested, bool transposed) const {
    const auto here = [&](const Tensor& x) { return x.to(out.device()); };
    ops::Fp8FromNf4(out, here(codes), here(nested ? absmax_codes : absmax),
                    nested ? here(nested_absmax) : Tensor(), nested ? here(offset) : Tensor(),
                    here(scale), transposed);
  }
  Tensor codes, absmax, absmax_codes, nested_absmax, offset;
};

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

struct Adapters {
  // Members with 5 rows between them that belong to none, and before the first.
  Adapters(int64_t columns, const std::vector<int64_t>& ranks, at::ScalarType type, int64_t gap) {
    rows = 5;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto height = static_cast<int64_t>(48 * (i % 3 + 1) + i);
      const Lay lay{0, gap};
      a.push_back(Placed(Normal({ranks[i], columns}, 40 + i).to(type), lay));
      b.push_back(Placed(Normal({height, ranks[i]}, 60 + i).to(type), lay));
      gpu_a.push_back(Placed(ToGpu(a.back()), lay));
      gpu_b.push_back(Placed(ToGpu(b.back()), lay));
      first_row.push_back(rows);
      rows += height + 5;
      rank += ranks[i];
    }
    rows = (rows + 15) / 16 * 16;
  }
  std::vector<Tensor> a, b, gpu_a, gpu_b;
  std::vector<int64_t> first_row;
  int64_t rows = 0, rank = 0;
};

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
    for (const auto type : kTypes) {
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

// ---- products ----

class Fp8GemmTest : public Fp8GpuTest {
 protected:
  void SetUp() override {
    Fp8GpuTest::SetUp();
    if (IsSkipped()) return;
    const CudaDeviceProperties device = Plugin().devices->Properties(0);
    if (device.compute_major * 10 + device.compute_minor < 89) {
      GTEST_SKIP() << "FP8 products need compute capability 8.9; " << device.name << " has "
                   << device.compute_major << "." << device.compute_minor;
    }
  }
};

// Float8 rows on the GPU in a buffer of rows of a multiple of 64, with 64 to spare which are NaN,
// and what they stand for in fp64.
struct Operand {
  Operand(const Tensor& values, const Tensor& row_scale) : scale(ToGpu(row_scale)) {
    const int64_t width = values.size(1);
    const Tensor bytes = at::full({values.size(0), (width + 63) / 64 * 64 + 64}, 0x7f, at::kByte);
    const Tensor fp8 = values.to(at::kFloat8_e4m3fn);
    bytes.narrow(1, 0, width).copy_(fp8.view(at::kByte));
    rows = ToGpu(bytes).view(at::kFloat8_e4m3fn).narrow(1, 0, width);
    exact = fp8.to(at::kFloat).to(at::kDouble) * row_scale.to(at::kDouble).unsqueeze(1);
  }
  Tensor rows, scale, exact;
};
Operand RandomOperand(int64_t rows, int64_t width, uint64_t seed) {
  return Operand(Normal({rows, width}, seed, 30.0).clamp(-448.0, 448.0),
                 Uniform({rows}, seed + 100, 1e-3, 1.0));
}

// Rows for a result, in a buffer with 24 columns to spare.
struct Fp8Result {
  Fp8Result(int64_t m, int64_t n, at::ScalarType type)
      : buffer(ToGpu(at::full({m, n + 24}, 77.0, type))), rows(buffer.narrow(1, 0, n)) {
    rows.fill_(kNaN);  // must not be read
  }
  bool GapIsUntouched() const {
    return (buffer.narrow(1, rows.size(1), 24) == 77.0).all().item<bool>();
  }
  Tensor buffer, rows;
};

constexpr int64_t kProducts[][3] = {{1, 16, 16},       {3, 32, 48},       {17, 64, 16},
                                    {129, 4160, 512},  {64, 4096, 64},    {257, 12352, 256},
                                    {1001, 272, 1040}, {2048, 4112, 1536}};

TEST_F(Fp8GemmTest, EqualsTheProductOfWhatTheRowsStandFor) {
  for (const auto& shape : kProducts) {
    const auto& [m, k, n] = shape;
    const Operand a = RandomOperand(m, k, 1), b = RandomOperand(n, k, 2);
    const Tensor product = at::mm(a.exact, b.exact.t());
    const Tensor sizes = at::mm(a.exact.abs(), b.exact.abs().t());
    for (const auto type : {at::kBFloat16, at::kFloat}) {
      const Tensor addend = Placed(ToGpu(Normal({m, n}, 3, 1000.0).to(type)), {0, 64});
      for (const bool adds : {false, true}) {
        Tensor expected = product, bound = sizes;
        if (adds) {
          expected = product + addend.cpu().to(at::kDouble);
          bound = sizes + addend.cpu().to(at::kDouble).abs();
        }
        Fp8Result out(m, n, type);
        ops::Fp8Gemm(out.rows, a.rows, a.scale, b.rows, b.scale, adds ? addend : Tensor());
        // Rounding to bf16, and sums whose terms are cut to 14 bits.
        EXPECT_LT(RelativeError(out.rows, expected), type == at::kFloat ? 2e-3 : 4e-3)
            << at::IntArrayRef(shape) << type << " addend " << adds;
        const Tensor error = (out.rows.cpu().to(at::kDouble) - expected).abs();
        EXPECT_TRUE((error <= bound / 256.0).all().item<bool>())
            << at::IntArrayRef(shape) << type << " addend " << adds;
        EXPECT_TRUE(out.GapIsUntouched()) << at::IntArrayRef(shape) << type << " addend " << adds;
      }
    }
  }
}

// Small whole numbers times powers of two: fp32 sums of them are exact in any order.
TEST_F(Fp8GemmTest, ExactSumsAreRoundedOnce) {
  const auto whole = [](int64_t rows, int64_t width, uint64_t seed) {
    const Tensor exponents = Uniform({rows}, seed + 50, -4.0, 4.0).round();
    return Operand(Normal({rows, width}, seed, 1.2).round().clamp(-3.0, 3.0), exponents.exp2());
  };
  for (const auto& shape : kProducts) {
    const auto& [m, k, n] = shape;
    const Operand a = whole(m, k, 1), b = whole(n, k, 2);
    const Tensor product = at::mm(a.exact, b.exact.t());
    for (const auto type : {at::kBFloat16, at::kFloat}) {
      const Tensor addend = ToGpu(Normal({m, n}, 3, 60.0).round().to(type));
      Fp8Result out(m, n, type), sum(m, n, type);
      ops::Fp8Gemm(out.rows, a.rows, a.scale, b.rows, b.scale, {});
      EXPECT_TRUE(at::equal(out.rows.cpu(), product.to(type))) << at::IntArrayRef(shape) << type;
      ops::Fp8Gemm(sum.rows, a.rows, a.scale, b.rows, b.scale, addend);
      const Tensor expected = (product + addend.cpu().to(at::kDouble)).to(type);
      EXPECT_TRUE(at::equal(sum.rows.cpu(), expected)) << at::IntArrayRef(shape) << type;
    }
  }
}

// Where a library would share a long sum out to several blocks, at the widths of Qwen3 with
// rank 64.
TEST_F(Fp8GemmTest, FewRowsOfLongSumsAreServed) {
  const auto on_gpu = at::TensorOptions(at::Device(at::kCUDA, 0)).dtype(at::kFloat);
  const auto random = [&](int64_t rows, int64_t width) {
    return at::randn({rows, width}, on_gpu).mul_(30.0).clamp_(-448.0, 448.0).to(at::kFloat8_e4m3fn);
  };
  for (const auto& [k, n] : std::vector<std::pair<int64_t, int64_t>>{
           {4160, 6144}, {9216, 3072}, {12352, 4096}, {25664, 5120}}) {
    const Tensor b = random(n, k), b_scale = at::rand({n}, on_gpu).add_(0.01);
    const Tensor b_plain = b.to(at::kFloat).mul_(b_scale.unsqueeze(1));
    for (const int64_t m : {1, 8, 16, 33, 64, 127, 128, 200, 256, 257, 384, 512, 1000}) {
      const Tensor a = random(m, k), a_scale = at::rand({m}, on_gpu).add_(0.01);
      const Tensor a_plain = a.to(at::kFloat).mul_(a_scale.unsqueeze(1));
      Tensor expected = at::empty({m, n}, on_gpu);
      ops::Gemm(expected, a_plain, b_plain.t(), 1.0, 0.0);
      const Tensor addend = at::ones({m, n}, on_gpu.dtype(at::kBFloat16));
      for (const bool adds : {false, true}) {
        Fp8Result out(m, n, at::kBFloat16);
        EXPECT_NO_THROW(ops::Fp8Gemm(out.rows, a, a_scale, b, b_scale, adds ? addend : Tensor()))
            << m << "x" << k << "x" << n << " addend " << adds;
        const Tensor difference = out.rows.to(at::kFloat) - (adds ? expected + 1.0 : expected);
        EXPECT_LT((difference.norm() / expected.norm()).item<double>(), 4e-3)
            << m << "x" << k << "x" << n << " addend " << adds;
      }
    }
  }
}

TEST_F(Fp8GemmTest, GivesTheSameBitsEachTime) {
  const Operand a = RandomOperand(33, 8192, 1), b = RandomOperand(512, 8192, 2);
  Fp8Result first(33, 512, at::kBFloat16), second(33, 512, at::kBFloat16);
  ops::Fp8Gemm(first.rows, a.rows, a.scale, b.rows, b.scale, {});
  for (int i = 0; i < 5; ++i) {
    second.rows.fill_(kNaN);
    ops::Fp8Gemm(second.rows, a.rows, a.scale, b.rows, b.scale, {});
    EXPECT_TRUE(SameBits(first.rows, second.rows));
  }
}

TEST_F(Fp8GemmTest, RefusesWhatDoesNotFit) {
  const Operand a = RandomOperand(4, 32, 1), b = RandomOperand(16, 48, 2);
  Fp8Result out(4, 16, at::kBFloat16);
  EXPECT_THROW(ops::Fp8Gemm(out.rows, a.rows, a.scale, b.rows, b.scale, {}), c10::Error);
  const Tensor fits = b.rows.narrow(1, 0, 32);
  EXPECT_THROW(ops::Fp8Gemm(out.rows, a.rows, a.scale, fits, a.scale, {}), c10::Error);
  EXPECT_THROW(ops::Fp8Gemm(out.rows, a.rows, a.scale, fits, b.scale, ToGpu(at::ones({4, 16}))),
               c10::Error);
}

// An adapted linear layer's forward or input gradient, as nn/projection.cc runs it.
struct AdaptedProduct {
  AdaptedProduct(const RandomNf4& weight, const Tensor& x, const Tensor& beside,
                 const Tensor& row_scale, const Adapters& adapters, bool transposed)
      : x_scale(at::empty({x.size(0)}, x.options().dtype(at::kFloat))) {
    const bool gpu = x.is_cuda();
    const int64_t width = x.size(1), rank = beside.size(1), rows = row_scale.numel();
    const auto float8_rows = [&](int64_t height) {
      const int64_t stride = (width + rank + 63) / 64 * 64;
      return at::zeros({height, stride}, x.options().dtype(at::kByte))
          .view(at::kFloat8_e4m3fn)
          .narrow(1, 0, width + rank);
    };
    wide = float8_rows(x.size(0));
    matrix = float8_rows(rows);
    Tensor own = wide.narrow(1, 0, width), next = wide.narrow(1, width, rank);
    ops::Fp8Quantize(own, x_scale, x);
    ops::Fp8QuantizeWith(next, beside, x_scale);
    own = matrix.narrow(1, 0, width);
    weight.Expand(own, row_scale, /*nested=*/true, transposed);
    ops::Fp8PlaceFactors(matrix, row_scale, gpu ? adapters.gpu_a : adapters.a,
                         gpu ? adapters.gpu_b : adapters.b, adapters.first_row, 0.05, transposed);
    out = at::empty({x.size(0), rows}, x.options());
    ops::Fp8Gemm(out, wide, x_scale, matrix, row_scale, {});
  }
  Tensor x_scale, wide, matrix, out;
};

TEST_F(Fp8GemmTest, AnAdaptedLinearEqualsTheCpusInBothDirections) {
  constexpr int64_t kTokens = 301, kColumns = 512;
  const Adapters adapters(kColumns, {16, 32, 16}, at::kBFloat16, 0);
  const RandomNf4 weight(adapters.rows * kColumns);
  for (const bool transposed : {false, true}) {
    const int64_t width = transposed ? adapters.rows : kColumns;
    const int64_t rows = transposed ? kColumns : adapters.rows;
    const Tensor x = Normal({kTokens, width}, 1).to(at::kBFloat16);
    const Tensor beside = Normal({kTokens, adapters.rank}, 2).to(at::kBFloat16);
    const Tensor row_scale = Uniform({rows}, 3, 5e-4, 2e-3);
    const AdaptedProduct cpu(weight, x, beside, row_scale, adapters, transposed);
    const AdaptedProduct gpu(weight, ToGpu(x), ToGpu(beside), ToGpu(row_scale), adapters,
                             transposed);
    EXPECT_TRUE(SameBits(gpu.x_scale, cpu.x_scale));
    EXPECT_TRUE(SameBits(gpu.wide, cpu.wide));
    EXPECT_TRUE(SameBits(gpu.matrix, cpu.matrix));
    EXPECT_LT(RelativeError(gpu.out, cpu.out), 4e-3) << transposed;
  }
}

}  // namespace
}  // namespace sft::engine
