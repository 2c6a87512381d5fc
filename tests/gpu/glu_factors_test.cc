#include "tests/gpu/gpu_test.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/rows.h"

// The one-pass backward of SwiGLU with its adapters, beside the CPU's in fp32 of the same bf16
// inputs: what is left is the rounding of d_gate, d_up and h to bf16, 2^-9 of each, before they are
// multiplied, and of the results that are bf16.

namespace sft::engine {
namespace {

using at::Tensor;

struct GluCase {
  const char* name;
  int64_t tokens, width, rank;
  plan::ActivationKind kind = plan::ActivationKind::kSilu;

  friend void PrintTo(const GluCase& c, std::ostream* out) { *out << c.name; }
};

struct GluResult {
  Tensor gate_up, dxa;
  ops::GluFactors factors;
};

class GluFactorsTest : public GpuTest, public ::testing::WithParamInterface<GluCase> {
 protected:
  // Rows with columns to spare, of which an odd number of chunks.
  static Tensor Rows(const Tensor& x) {
    const Tensor buffer = at::full({x.size(0), x.size(1) + 72}, 77.0, x.options());
    Tensor rows = buffer.narrow(1, 0, x.size(1));
    rows.copy_(x);
    return rows;
  }

  // On the GPU in bf16, or on the CPU in fp32, from the same values.
  GluResult Run(bool gpu) const {
    const GluCase& c = GetParam();
    const auto value = [&](at::IntArrayRef sizes, uint64_t seed, double scale) {
      const Tensor x = Normal(sizes, seed, scale).to(at::kBFloat16);
      return gpu ? ToGpu(x) : x.to(at::kFloat);
    };
    const auto zeros = [&](at::IntArrayRef sizes) {
      const Tensor x = at::full(sizes, 0.25, at::kFloat);
      return gpu ? ToGpu(x) : x;
    };
    GluResult r;
    r.gate_up = Rows(value({c.tokens, 2 * c.width}, 1, 2.0));
    const Tensor dy = Rows(value({c.tokens, c.width}, 2, 1.0));
    r.factors = {.xa = value({c.tokens, 2 * c.rank}, 3, 1.0),
                 .b_gate = value({c.width, c.rank}, 4, 1.0),
                 .b_up = value({c.width, c.rank}, 5, 1.0),
                 .dxa_down = value({c.tokens, c.rank}, 6, 1.0),
                 .db_gate = zeros({c.width, c.rank}),
                 .db_up = zeros({c.width, c.rank}),
                 .da_down = zeros({c.rank, c.width}),
                 .scale = 2.0,
                 .kind = c.kind};
    EXPECT_TRUE(ops::HasGluFactors(r.gate_up, c.rank));
    r.dxa = SpareColumns(r.gate_up, 72).narrow(1, 8, 2 * c.rank);
    ops::GluFactorsBackward(r.gate_up, r.dxa, dy, r.factors);
    return r;
  }
};

TEST_P(GluFactorsTest, EqualsTheReference) {
  const GluCase& c = GetParam();
  const GluResult actual = Run(true), expected = Run(false);
  EXPECT_LT(RelativeError(actual.gate_up, expected.gate_up), 4e-3);
  EXPECT_LT(RelativeError(actual.dxa, expected.dxa), 6e-3);
  EXPECT_LT(RelativeError(actual.factors.db_gate, expected.factors.db_gate), 4e-3);
  EXPECT_LT(RelativeError(actual.factors.db_up, expected.factors.db_up), 4e-3);
  EXPECT_LT(RelativeError(actual.factors.da_down, expected.factors.da_down), 4e-3);
  const Tensor beside = SpareColumns(actual.gate_up, 72);
  EXPECT_TRUE((beside.narrow(1, 0, 8) == 77.0).all().item<bool>());
  EXPECT_TRUE((beside.narrow(1, 8 + 2 * c.rank, 64 - 2 * c.rank) == 77.0).all().item<bool>());
}

// Row by row and column by column: an error in one tile would drown in the whole.
TEST_P(GluFactorsTest, EachTokenAndEachColumnIsRight) {
  const GluResult actual = Run(true), expected = Run(false);
  const auto worst = [](const Tensor& a, const Tensor& b, int64_t along) {
    const Tensor x = a.cpu().to(at::kDouble), y = b.to(at::kDouble);
    const Tensor error = (x - y).square().sum({along}).sqrt(),
                 norm = y.square().sum({along}).sqrt();
    return (error / (norm + norm.mean())).max().item<double>();
  };
  EXPECT_LT(worst(actual.dxa, expected.dxa, 1), 2e-2);
  EXPECT_LT(worst(actual.gate_up, expected.gate_up, 1), 1e-2);
  EXPECT_LT(worst(actual.factors.db_gate, expected.factors.db_gate, 1), 2e-2);
  EXPECT_LT(worst(actual.factors.db_up, expected.factors.db_up, 1), 2e-2);
  EXPECT_LT(worst(actual.factors.da_down, expected.factors.da_down, 0), 2e-2);
}

TEST_P(GluFactorsTest, RowsHaveTheBitsOfThePlainBackwardAndAllRepeat) {
  const GluCase& c = GetParam();
  const GluResult first = Run(true);
  const Tensor gate_up = ToGpu(Normal({c.tokens, 2 * c.width}, 1, 2.0).to(at::kBFloat16));
  const Tensor dy = ToGpu(Normal({c.tokens, c.width}, 2, 1.0).to(at::kBFloat16));
  Tensor plain = at::empty_like(gate_up);
  ops::GluBackward(plain, dy, gate_up, c.kind);
  EXPECT_TRUE(SameBits(first.gate_up, plain));
  for (int i = 0; i < 3; ++i) {
    const GluResult again = Run(true);
    EXPECT_TRUE(SameBits(first.dxa, again.dxa));
    EXPECT_TRUE(SameBits(first.factors.db_gate, again.factors.db_gate));
    EXPECT_TRUE(SameBits(first.factors.db_up, again.factors.db_up));
    EXPECT_TRUE(SameBits(first.factors.da_down, again.factors.da_down));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, GluFactorsTest,
    ::testing::Values(GluCase{"one_token", 1, 256, 16}, GluCase{"one_tile", 128, 256, 16},
                      GluCase{"part_of_a_tile", 300, 512, 16},
                      GluCase{"gelu", 300, 512, 16, plan::ActivationKind::kGeluTanh},
                      GluCase{"gelu_32", 700, 9728, 32, plan::ActivationKind::kGeluTanh},
                      // Strips of one tile, more than multiprocessors.
                      GluCase{"a_tile_a_strip", 20, 34048, 16},
                      GluCase{"a_tile_a_strip_32", 50, 17024, 32}, GluCase{"rank_32", 300, 512, 32},
                      GluCase{"many_strips", 700, 12288, 16},
                      GluCase{"rank_32_strips", 1030, 9728, 32},
                      GluCase{"many_tokens", 8192, 3072, 16}),
    [](const auto& info) { return info.param.name; });

TEST_F(GpuTest, GluFactorsLeavesOtherSizesToThePlainPath) {
  const auto has = [](int64_t width, int64_t rank, at::ScalarType type) {
    return ops::HasGluFactors(ToGpu(at::zeros({4, 2 * width}, type)), rank);
  };
  EXPECT_TRUE(has(256, 16, at::kBFloat16));
  EXPECT_FALSE(has(256, 8, at::kBFloat16));
  EXPECT_FALSE(has(320, 16, at::kBFloat16));
  EXPECT_FALSE(has(256, 16, at::kFloat));
}

}  // namespace
}  // namespace sft::engine
