#include "worker/engine/optim/adamw.h"

#include <limits>

#include "tests/gpu/gpu_test.h"
#include "tests/unit/worker/engine/optim/adamw_oracle.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/optim/grad_norm.h"

// The CPU loops are the reference, held against the formula by tests/unit. Nothing is rounded in
// another way on a GPU, so weights, copies and - through the weights of later steps - states are
// compared as bits, but for a NaN's payload.

namespace sft::engine {
namespace {

using spec::Optimizer;

struct Mode {
  Optimizer kind;
  at::ScalarType weight;
  at::ScalarType grad;
  bool copy;
};

std::vector<Mode> Modes() {
  std::vector<Mode> modes;
  for (const auto kind : {Optimizer::kAdamW, Optimizer::kAdamWBf16, Optimizer::kAdamW8bit}) {
    for (const auto weight : {at::kFloat, at::kBFloat16}) {
      for (const auto grad : {at::kFloat, at::kBFloat16}) {
        for (const bool copy : {false, true}) modes.push_back({kind, weight, grad, copy});
      }
    }
  }
  return modes;
}

std::string Name(const Mode& mode) {
  return std::string(mode.kind == Optimizer::kAdamW       ? "fp32"
                     : mode.kind == Optimizer::kAdamWBf16 ? "bf16"
                                                          : "8-bit") +
         " states, weights " + at::toString(mode.weight) + ", gradients " +
         at::toString(mode.grad) + (mode.copy ? ", copy" : "");
}

// Equal as bits but for NaN, which must be NaN in both.
bool SameValues(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.cpu(), y = b.cpu();
  return SameBits(x.isnan(), y.isnan()) &&
         SameBits(x.masked_fill(x.isnan(), 0), y.masked_fill(y.isnan(), 0));
}

// Tensors of the given sizes, one after the other in flat buffers in which each is preceded by
// `gap` elements: 0 and a multiple of 8 keep multiples of 8 aligned.
class Side {
 public:
  Side(const Mode& mode, const std::vector<int64_t>& sizes, int64_t gap, at::Device device,
       const AdamWOptions& options)
      : mode_(mode), sizes_(sizes), gap_(gap), device_(device) {
    weights = Cut(Values(0, 0.1).to(mode.weight).to(device));
    const auto other = mode.weight == at::kFloat ? at::kBFloat16 : at::kFloat;
    if (mode.copy) copies = Cut(Values(0, 0.1).mul_(0).to(other).to(device));
    std::vector<OptimizerParam> params;
    for (size_t i = 0; i < sizes.size(); ++i) {
      // Offsets of shards, of which one lies across a block of the random bits.
      params.push_back({"w", weights[i], mode.copy ? copies[i] : at::Tensor(),
                        static_cast<int64_t>(i), static_cast<int64_t>(i) * 65531});
    }
    optimizer_.emplace(std::move(params), options);
  }

  void Step(uint64_t seed, double grad_scale) {
    StepWith(Cut(Values(seed, 1e-2).to(mode_.grad).to(device_)), grad_scale);
  }
  void StepWith(const std::vector<at::Tensor>& grads, double grad_scale) {
    optimizer_->Step(grads, 1e-2, grad_scale);
  }

  std::vector<at::Tensor> weights, copies;

 private:
  at::Tensor Values(uint64_t seed, double scale) const {
    int64_t total = 0;
    for (const int64_t size : sizes_) total += gap_ + size;
    // From step to step the size of gradients varies, so that rounding is not always the same.
    return Normal({total}, seed, scale * (1 + static_cast<double>(seed % 3)));
  }
  std::vector<at::Tensor> Cut(const at::Tensor& flat) const {
    std::vector<at::Tensor> parts;
    int64_t begin = 0;
    for (const int64_t size : sizes_) {
      parts.push_back(flat.narrow(0, begin + gap_, size));
      begin += gap_ + size;
    }
    return parts;
  }

  Mode mode_;
  std::vector<int64_t> sizes_;
  int64_t gap_;
  at::Device device_;
  std::optional<AdamW> optimizer_;
};

AdamWOptions Options(Optimizer kind) { return {.kind = kind, .weight_decay = 0.1, .seed = 7}; }

const std::vector<int64_t>& RaggedSizes() {
  static const std::vector<int64_t> sizes = {1,    3,    255,  256,   257,    4095,
                                             4096, 4097, 8192, 65536, 100003, 0};
  return sizes;
}

void ExpectSame(const Side& gpu, const Side& cpu, const std::string& where) {
  for (size_t i = 0; i < cpu.weights.size(); ++i) {
    const auto size = cpu.weights[i].numel();
    EXPECT_TRUE(SameValues(gpu.weights[i], cpu.weights[i])) << where << ": weight of " << size;
    if (!cpu.copies.empty()) {
      EXPECT_TRUE(SameValues(gpu.copies[i], cpu.copies[i])) << where << ": copy of " << size;
    }
  }
}

class AdamWGpuTest : public GpuTest {
 protected:
  const at::Device device_ = at::Device(at::kCUDA, 0);
};

TEST_F(AdamWGpuTest, EveryModeHasTheBitsOfTheCpuLoopsForRaggedSizesAndOddPlaces) {
  for (const Mode& mode : Modes()) {
    for (const int64_t gap : {0, 1, 8}) {
      const std::string where = Name(mode) + ", gap " + std::to_string(gap);
      Side cpu(mode, RaggedSizes(), gap, at::kCPU, Options(mode.kind));
      Side gpu(mode, RaggedSizes(), gap, device_, Options(mode.kind));
      for (uint64_t step = 1; step <= 4; ++step) {
        cpu.Step(step, 0.37);
        gpu.Step(step, 0.37);
        ExpectSame(gpu, cpu, where + ", step " + std::to_string(step));
      }
    }
  }
}

TEST_F(AdamWGpuTest, MoreTensorsThanALaunchHoldsHaveTheBitsOfTheCpuLoops) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < 131; ++i) sizes.push_back(1 + i * 977 % 9001);
  for (const Mode& mode : {Mode{Optimizer::kAdamW, at::kFloat, at::kFloat, true},
                           Mode{Optimizer::kAdamW8bit, at::kBFloat16, at::kBFloat16, false}}) {
    Side cpu(mode, sizes, 0, at::kCPU, Options(mode.kind));
    Side gpu(mode, sizes, 0, device_, Options(mode.kind));
    for (uint64_t step = 1; step <= 2; ++step) {
      cpu.Step(step, 1.0);
      gpu.Step(step, 1.0);
    }
    ExpectSame(gpu, cpu, Name(mode));
  }
}

TEST_F(AdamWGpuTest, ValuesThatAreNotFiniteStayVisibleWhereTheyAre) {
  const float infinite = std::numeric_limits<float>::infinity();
  for (const Mode& mode : Modes()) {
    Side cpu(mode, {5000}, 0, at::kCPU, Options(mode.kind));
    Side gpu(mode, {5000}, 0, device_, Options(mode.kind));
    at::Tensor grad = Normal({5000}, 3);
    grad[17].fill_(std::numeric_limits<float>::quiet_NaN());
    grad[700].fill_(infinite);
    grad[4999].fill_(-infinite);
    for (int step = 0; step < 2; ++step) {
      cpu.StepWith({grad.to(mode.grad)}, 1.0);
      gpu.StepWith({ToGpu(grad.to(mode.grad))}, 1.0);
      const at::Tensor finite = gpu.weights[0].isfinite();
      for (const int64_t bad : {17, 700, 4999}) EXPECT_FALSE(finite[bad].item<bool>()) << bad;
      ExpectSame(gpu, cpu, Name(mode));
    }
  }
}

TEST_F(AdamWGpuTest, TheOperationsOfAtenAgree) {
  for (const Mode& mode : Modes()) {
    AdamWOptions generic = Options(mode.kind);
    generic.step = optim::StepAten;
    Side ours(mode, {100003}, 0, device_, Options(mode.kind));
    Side aten(mode, {100003}, 0, device_, generic);
    for (uint64_t step = 1; step <= 4; ++step) {
      ours.Step(step, 0.37);
      aten.Step(step, 0.37);
    }
    // ATen's kernels fuse multiplications and additions: an ulp, which now and then turns a
    // rounding.
    const bool rounds = mode.weight == at::kBFloat16 || mode.kind != Optimizer::kAdamW;
    EXPECT_LT(RelativeError(ours.weights[0], aten.weights[0]), rounds ? 2e-4 : 1e-6) << Name(mode);
  }
}

TEST_F(AdamWGpuTest, CuttingAParameterIntoShardsChangesNothing) {
  const int64_t count = 200'003, cut = 66'001;
  for (const auto kind : {Optimizer::kAdamW, Optimizer::kAdamWBf16}) {
    const at::Tensor start = ToGpu(Normal({count}, 1, 0.1)).to(at::kBFloat16);
    const at::Tensor grad = ToGpu(Normal({count}, 2)), whole = start.clone(), parts = start.clone();
    AdamW({{.name = "w", .weight = whole, .id = 3}}, Options(kind))
        .Step(std::vector<at::Tensor>{grad}, 1e-2);
    const at::Tensor first = parts.narrow(0, 0, cut), rest = parts.narrow(0, cut, count - cut);
    AdamW({{.name = "w", .weight = first, .id = 3},
           {.name = "w", .weight = rest, .id = 3, .offset = cut}},
          Options(kind))
        .Step(std::vector<at::Tensor>{grad.narrow(0, 0, cut), grad.narrow(0, cut, count - cut)},
              1e-2);
    EXPECT_TRUE(SameBits(parts, whole)) << static_cast<int>(kind);
    EXPECT_FALSE(SameBits(whole, start));
  }
}

TEST_F(AdamWGpuTest, NothingBesideTheTensorsIsTouched) {
  for (const auto kind : {Optimizer::kAdamW, Optimizer::kAdamW8bit}) {
    for (const int64_t begin : {64, 61}) {
      const at::Tensor weights = ToGpu(at::full({5000}, 77.0)), copies = weights.to(at::kBFloat16);
      AdamW optimizer({{.name = "w",
                        .weight = weights.narrow(0, begin, 4801),
                        .copy = copies.narrow(0, begin, 4801)}},
                      Options(kind));
      optimizer.Step(std::vector<at::Tensor>{ToGpu(at::ones({4801}))}, 1e-1);
      for (const at::Tensor& buffer : {weights, copies}) {
        EXPECT_TRUE((buffer.narrow(0, 0, begin) == 77.0).all().item<bool>());
        EXPECT_TRUE((buffer.slice(0, begin + 4801) == 77.0).all().item<bool>());
        EXPECT_FALSE((buffer.narrow(0, begin, 4801) == 77.0).any().item<bool>());
      }
    }
  }
}

TEST_F(AdamWGpuTest, RefusesTensorsThatDoNotFit) {
  const at::Tensor w = ToGpu(at::zeros({300})), maps;
  const ops::AdamWFactors factors{};
  const auto tensors = [&] {
    return ops::AdamWTensors{
        .weights = {w}, .grads = {w}, .m = {w}, .v = {w}, .keys = {0}, .offsets = {0}};
  };
  ops::AdamWTensors bad = tensors();
  bad.grads = {w.narrow(0, 0, 299)};
  EXPECT_THROW(ops::AdamWStep(bad, maps, factors), c10::Error);
  bad = tensors();
  bad.copies = {w};
  EXPECT_THROW(ops::AdamWStep(bad, maps, factors), c10::Error);
  bad = tensors();
  bad.m = bad.v = {w.to(at::kByte)};
  EXPECT_THROW(ops::AdamWStep(bad, maps, factors), c10::Error);
  bad.m_absmax = bad.v_absmax = {ToGpu(at::zeros({2}))};
  EXPECT_THROW(ops::AdamWStep(bad, maps, factors), c10::Error) << "without maps";
  bad = tensors();
  bad.keys.push_back(1);
  EXPECT_THROW(ops::AdamWStep(bad, maps, factors), c10::Error);
}

TEST_F(AdamWGpuTest, TheNormOfPartsOfOneBufferIsThatOfTheCpuAndRepeats) {
  const at::Tensor flat = Normal({3'000'017}, 5, 0.01), on_gpu = ToGpu(flat);
  std::vector<at::Tensor> host, device;
  for (int64_t begin = 0, i = 0; begin < flat.numel(); ++i) {
    const int64_t count = std::min<int64_t>(flat.numel() - begin, 1 + i * 7919 % 40'000);
    host.insert(host.begin(), flat.narrow(0, begin, count));
    device.insert(device.begin(), on_gpu.narrow(0, begin, count));
    begin += count;
  }
  ASSERT_EQ(JoinAdjacent(device).size(), 1u);
  const double expected = SquaredNorm(host), norm = SquaredNorm(device);
  EXPECT_NEAR(norm, expected, 2e-6 * expected);  // fp32 sums of 3 million squares
  EXPECT_EQ(SquaredNorm(device), norm);
  on_gpu[1234].fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan(SquaredNorm(device)));
}

}  // namespace
}  // namespace sft::engine
