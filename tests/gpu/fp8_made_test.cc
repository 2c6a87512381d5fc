// Operations that write the rows they make in FP8, too: byte by byte what quantising those rows
// afterwards gives, while the rows themselves are those of the operation alone.
#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "tests/gpu/fp8_data.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/small_training.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

// Rows in a buffer that holds `value` everywhere.
struct Laid {
  Laid(at::IntArrayRef sizes, at::ScalarType type, const Lay& lay, double value)
      : buffer(ToGpu(at::full({sizes[0], lay.before + sizes[1] + lay.behind}, value, type))),
        rows(buffer.narrow(1, lay.before, sizes[1])) {}
  Tensor buffer, rows;
};

// Where rows go in FP8: in a buffer of bytes, with scales that are none yet.
struct LaidFp8 {
  LaidFp8(at::IntArrayRef sizes, const Lay& lay)
      : bytes(sizes, at::kByte, lay, 0x2a),
        fp8{bytes.rows.view(at::kFloat8_e4m3fn), ToGpu(at::full({sizes[0]}, -5.0f))} {}
  void ExpectQuantised(const Tensor& rows, const Lay& lay) const {
    LaidFp8 expected(rows.sizes(), lay);
    ops::Fp8Quantize(expected.fp8.values, expected.fp8.scale, rows);
    EXPECT_TRUE(SameBits(bytes.buffer, expected.bytes.buffer));
    EXPECT_TRUE(SameBits(fp8.scale, expected.fp8.scale));
  }
  Laid bytes;
  ops::Fp8Rows fp8;
};

// Calls `check(type, lay of the rows, lay of those in FP8)` for all of them: what is aligned in one
// may not be so in the other.
template <typename Check>
void ForAllLays(int64_t width, const Check& check) {
  for (const auto type : kFp8InputTypes) {
    for (const Lay& lay : LaysOf(width)) {
      for (const Lay& fp8_lay : LaysOf(width)) {
        SCOPED_TRACE(::testing::Message() << type << " " << width << " before " << lay.before
                                          << " and " << fp8_lay.before);
        check(type, lay, fp8_lay);
      }
    }
  }
}

void ExpectNorm(const Tensor& values) {
  const at::IntArrayRef sizes = values.sizes();
  const Tensor w_values = Normal({sizes[1]}, 2);
  ForAllLays(sizes[1], [&](at::ScalarType type, const Lay& lay, const Lay& fp8_lay) {
    const Tensor x = Placed(ToGpu(values.to(type)), lay), w = ToGpu(w_values.to(type));
    Laid y(sizes, type, lay, 77.0), plain(sizes, type, lay, 77.0);
    const LaidFp8 made(sizes, fp8_lay);
    const Tensor rstd = ops::RmsNorm(y.rows, x, w, 1e-6, made.fp8);
    EXPECT_TRUE(SameBits(rstd, ops::RmsNorm(plain.rows, x, w, 1e-6)));
    EXPECT_TRUE(SameBits(y.buffer, plain.buffer));
    made.ExpectQuantised(y.rows, fp8_lay);
  });
}

void ExpectNormBackward(const Tensor& values) {
  const at::IntArrayRef sizes = values.sizes();
  const Tensor w_values = Normal({sizes[1]}, 2), skip = Normal(sizes, 3),
               dy_values = values.flip(0);
  for (const Tensor& rows : {skip, dy_values}) rows.select(0, 1).zero_();  // as those of `values`
  ForAllLays(sizes[1], [&](at::ScalarType type, const Lay& lay, const Lay& fp8_lay) {
    const Tensor x = Placed(ToGpu(values.to(type)), lay), w = ToGpu(w_values.to(type));
    const Tensor dy = Placed(ToGpu(dy_values.to(type)), lay);
    Laid y(sizes, type, lay, 77.0);
    const Tensor rstd = ops::RmsNorm(y.rows, x, w, 1e-6);
    for (const bool adds : {false, true}) {
      const Tensor residual = adds ? Placed(ToGpu(skip.to(type)), lay) : Tensor();
      Laid dx(sizes, type, lay, 77.0), plain(sizes, type, lay, 77.0);
      const LaidFp8 made(sizes, fp8_lay), over(sizes, fp8_lay);
      const Tensor dw =
          ops::RmsNormBackward(plain.rows, dy, x, w, rstd, plan::NormKind::kRms, residual, true);
      EXPECT_TRUE(SameBits(ops::RmsNormBackward(dx.rows, dy, x, w, rstd, plan::NormKind::kRms,
                                                residual, true, made.fp8),
                           dw));
      EXPECT_TRUE(SameBits(dx.buffer, plain.buffer)) << "adds " << adds;
      made.ExpectQuantised(dx.rows, fp8_lay);
      // In the place of what it adds, as a block's backward has it, or else of its gradient.
      dx.rows.copy_(adds ? residual : dy);
      ops::RmsNormBackward(dx.rows, adds ? dy : dx.rows, x, w, rstd, plan::NormKind::kRms,
                           adds ? dx.rows : residual, false, over.fp8);
      EXPECT_TRUE(SameBits(dx.buffer, plain.buffer)) << "in place, adds " << adds;
      EXPECT_TRUE(SameBits(over.bytes.buffer, made.bytes.buffer)) << "in place, adds " << adds;
      EXPECT_TRUE(SameBits(over.fp8.scale, made.fp8.scale)) << "in place, adds " << adds;
    }
  });
}

void ExpectGlu(const Tensor& values) {
  const std::vector<int64_t> sizes = {values.size(0), values.size(1) / 2};
  ForAllLays(sizes[1], [&](at::ScalarType type, const Lay& lay, const Lay& fp8_lay) {
    const Tensor gate_up = Placed(ToGpu(values.to(type)), lay);
    Laid out(sizes, type, lay, 77.0), plain(sizes, type, lay, 77.0);
    const LaidFp8 made(sizes, fp8_lay);
    ops::Glu(out.rows, gate_up, plan::ActivationKind::kSilu, made.fp8);
    ops::Glu(plain.rows, gate_up, plan::ActivationKind::kSilu);
    EXPECT_TRUE(SameBits(out.buffer, plain.buffer));
    made.ExpectQuantised(out.rows, fp8_lay);
  });
}

class Fp8MadeTest : public GpuTest, public ::testing::WithParamInterface<int64_t> {};

TEST_P(Fp8MadeTest, NormsWriteWhatQuantisingTheirRowsGives) { ExpectNorm(Awkward(11, GetParam())); }

TEST_P(Fp8MadeTest, NormBackwardsWriteWhatQuantisingTheirRowsGives) {
  ExpectNormBackward(Awkward(11, GetParam()));
}

TEST_P(Fp8MadeTest, GluWritesWhatQuantisingItsRowsGives) { ExpectGlu(Awkward(11, 2 * GetParam())); }

// Both ends of every way to share a row out to threads, for norms and for SwiGLU, in bf16 and in
// fp32, and the widths of Qwen3.
INSTANTIATE_TEST_SUITE_P(Widths, Fp8MadeTest,
                         ::testing::Values(1, 3, 8, 17, 64, 96, 256, 508, 512, 520, 1000, 1024,
                                           1032, 2048, 2056, 4096, 4104, 5120, 6144, 8192, 8200,
                                           12288, 16384, 16392, 25600, 25601, 32768, 32776, 65536,
                                           65544),
                         ::testing::PrintToStringParamName());

TEST_F(GpuTest, ManyRowsAreMadeInFp8AsQuantised) {
  for (const int64_t width : {7, 128}) {
    ExpectNorm(Awkward(11, width).repeat({1819, 1}));
    ExpectNormBackward(Awkward(11, width).repeat({1819, 1}));
    ExpectGlu(Awkward(11, 2 * width).repeat({1819, 1}));
  }
}

TEST_F(GpuTest, MakingRowsInFp8TakesNoRowsAndRefusesWhatDoesNotFit) {
  const LaidFp8 none({0, 64}, {0, 16}), narrow({4, 32}, {0, 16});
  Tensor empty = ToGpu(at::empty({0, 64}, at::kBFloat16));
  const Tensor w = ToGpu(at::ones({64}, at::kBFloat16));
  const Tensor rstd = ops::RmsNorm(empty, empty, w, 1e-6, none.fp8);
  ops::RmsNormBackward(empty, empty, empty, w, rstd, plan::NormKind::kRms, {}, false, none.fp8);
  ops::Glu(empty, ToGpu(at::empty({0, 128}, at::kBFloat16)), plan::ActivationKind::kSilu, none.fp8);
  Tensor y = ToGpu(at::ones({4, 64}, at::kBFloat16));
  const Tensor x = y.clone();
  EXPECT_THROW(ops::RmsNorm(y, x, w, 1e-6, narrow.fp8), c10::Error);
  EXPECT_THROW(ops::RmsNorm(y, x, w, 1e-6, {narrow.fp8.values, {}}), c10::Error);
  EXPECT_THROW(ops::Glu(y, at::cat({x, x}, 1), plan::ActivationKind::kSilu, narrow.fp8),
               c10::Error);
}

// ---- a model ----

class Fp8TrainingTest : public SmallTrainingTest {
 protected:
  void SetUp() override {
    SmallTrainingTest::SetUp();
    if (IsSkipped()) return;
    const CudaDeviceProperties device = Plugin().devices->Properties(0);
    if (device.compute_major != 9) {
      GTEST_SKIP() << "FP8 products with a scale a row need Hopper; this is " << device.name;
    }
  }
};

// What is restored is made in FP8 where a product reads it again, and else in bf16 alone.
TEST_F(Fp8TrainingTest, EveryLevelOfRecomputationTrainsToTheSameBits) {
  spec::JobSpec job = Job(spec::Mode::kLora);
  job.training.use_qlora = true;
  job.training.matmul = spec::Matmul::kFp8;
  job.quantization.bits = 4;
  const auto train = [&](plan::Recompute level) {
    return Train(job, 1e-3, plan::ExecutionPlan{.shallow = level});
  };
  const Outcome kept = train(plan::Recompute::kNothing);
  for (const plan::Recompute level : {plan::Recompute::kNorms, plan::Recompute::kMlp,
                                      plan::Recompute::kLinears, plan::Recompute::kAll}) {
    const Outcome again = train(level);
    EXPECT_EQ(again.losses, kept.losses) << static_cast<int>(level);
    EXPECT_EQ(again.norms, kept.norms) << static_cast<int>(level);
    for (size_t i = 0; i < kept.masters.size(); ++i) {
      EXPECT_TRUE(SameBits(again.masters[i], kept.masters[i])) << static_cast<int>(level);
    }
  }
}

spec::JobSpec FullJob(spec::JobSpec job, spec::Matmul matmul) {
  job.training.matmul = matmul;
  return job;
}

TEST_F(Fp8TrainingTest, FullFineTuningTrainsToTheSameBitsByEveryPlan) {
  for (const auto matmul : {spec::Matmul::kFp8, spec::Matmul::kFp8Bf16Wgrad}) {
    const spec::JobSpec job = FullJob(Job(spec::Mode::kFullFinetune), matmul);
    const Outcome kept = Train(job, 1e-4, plan::ExecutionPlan{.kept = 4});
    for (const plan::ExecutionPlan& run :
         {plan::ExecutionPlan{}, plan::ExecutionPlan{.kept = 2},
          plan::ExecutionPlan{.shallow = plan::Recompute::kMlp, .kept = 4},
          plan::ExecutionPlan{.shallow = plan::Recompute::kAll}}) {
      const Outcome again = Train(job, 1e-4, run);
      EXPECT_EQ(again.losses, kept.losses) << run.kept;
      EXPECT_EQ(again.norms, kept.norms) << run.kept;
      for (size_t i = 0; i < kept.masters.size(); ++i) {
        EXPECT_TRUE(SameBits(again.masters[i], kept.masters[i])) << run.kept;
      }
    }
  }
}

TEST_F(Fp8TrainingTest, FullFineTuningIsNearThePlainOne) {
  const spec::JobSpec job = Job(spec::Mode::kFullFinetune);
  const Outcome plain = Train(job, 1e-4);
  for (const auto matmul : {spec::Matmul::kFp8, spec::Matmul::kFp8Bf16Wgrad}) {
    const Outcome fp8 = Train(FullJob(job, matmul), 1e-4);
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(fp8.losses[step] / plain.losses[step], 1.0, 0.02) << step;
      EXPECT_NEAR(fp8.norms[step] / plain.norms[step], 1.0, 0.1) << step;
    }
  }
}

}  // namespace
}  // namespace sft::engine
