#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/gpu_test.h"
#include "tests/unit/worker/engine/model/stored_model.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "worker/engine/train/base_weights.h"

// Quantised checkpoints on their way to a GPU: the bits are those of the definition.

namespace sft::engine {
namespace {

using at::Tensor;

const at::Device kGpu(at::kCUDA, 0);

void ExpectWeightsOnGpu(const ModelLayout& layout, const BaseWeights& base,
                        const StoredModel& model, FrozenOptions options) {
  const auto comm = MakeLocalCommunicator(kGpu);
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    options.compute = compute;
    const auto source = LoadFrozen(layout, base, options, *comm);
    for (int unit = 0; unit < layout.size(); ++unit) {
      const AcquiredUnit acquired(*source, layout, unit);
      for (size_t i = 0; i < layout.units[unit].params.size(); ++i) {
        const ParamInfo& param = layout.units[unit].params[i];
        EXPECT_TRUE(
            at::equal(acquired.weights().params[i].cpu(), model.Expected(param).to(compute)))
            << param.name << " in " << compute;
      }
    }
  }
}

class StoredNf4OnGpuTest : public GpuTest, public testing::WithParamInterface<Nf4Style> {};

TEST_P(StoredNf4OnGpuTest, IsHeldBitForBit) {
  StoredModel model(OddConfig(kBnb));
  model.PutAll([&](const ParamInfo& param) { model.PutNf4(param, GetParam()); }, "k_proj");
  ModelLayout layout = model.layout();
  const BaseWeights base(model.Write(), layout, kGpu);
  // De-quantised as it is read.
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) {
      for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
               {0, param.numel()}, {1, param.numel() / 2}, {param.numel() / 3, 5}}) {
        EXPECT_TRUE(at::equal(base.Read(param, first, count).cpu().to(at::kFloat),
                              model.Expected(param).view({-1}).narrow(0, first, count)))
            << param.name << " from " << first;
      }
    }
  }
  base.QuantizeAsStored(layout);
  ExpectWeightsOnGpu(layout, base, model, {.bits = 4});
  ExpectWeightsOnGpu(layout, base, model, {.bits = 4, .run = {.blocks_on_host = true}});
}

INSTANTIATE_TEST_SUITE_P(Styles, StoredNf4OnGpuTest,
                         testing::Values(Nf4Style{"as_held"},
                                         Nf4Style{"another_map", 64, 256, true, false},
                                         Nf4Style{"plain_scales_of_128", 128, 0, false, false}),
                         [](const auto& info) { return info.param.name; });

using StoredFp8OnGpuTest = GpuTest;

TEST_F(StoredFp8OnGpuTest, IsMultipliedOut) {
  for (const at::ScalarType scales : {at::kFloat, at::kFloat8_e8m0fnu}) {
    StoredModel model(OddConfig(kFp8));
    model.PutAll([&](const ParamInfo& param) { model.PutFp8(param, false, scales); }, "o_proj");
    const BaseWeights base(model.Write(), model.layout(), kGpu);
    ExpectWeightsOnGpu(model.layout(), base, model, {.bits = 0});
  }
}

// A plain weight among those in 4 bits, where products are in FP8.
TEST_F(StoredFp8OnGpuTest, MatricesHoldPlainWeightsToo) {
  StoredModel model(
      TinyConfig(R"(, "hidden_size": 64, "quantization_config": )" + std::string(kBnb)));
  model.PutAll([&](const ParamInfo& param) { model.PutNf4(param, {}); }, "k_proj");
  ModelLayout layout = model.layout();
  const BaseWeights base(model.Write(), layout, kGpu);
  base.QuantizeAsStored(layout);
  const auto comm = MakeLocalCommunicator(kGpu);
  const auto source =
      LoadFrozen(layout, base, {.compute = at::kBFloat16, .bits = 4, .fp8 = true}, *comm);
  const AcquiredUnit acquired(*source, layout, 1);
  const UnitInfo& unit = layout.units[1];
  ASSERT_EQ(acquired.weights().fp8.size(), unit.shared_matrices.size());
  for (size_t i = 0; i < unit.shared_matrices.size(); ++i) {
    const Fp8Matrix& fp8 = acquired.weights().fp8[i];
    const Tensor forward = fp8.forward.to(at::kFloat) * fp8.forward_scale.unsqueeze(1);
    const Tensor backward = fp8.backward.to(at::kFloat) * fp8.backward_scale.unsqueeze(1);
    for (const MatrixInfo::Member& member : unit.Matrix(static_cast<int>(i)).members) {
      const Tensor expected = model.Expected(unit.params[member.weight]);
      // Three bits of mantissa, and what is small beside the largest of a row.
      EXPECT_LT(RelativeError(forward.narrow(0, member.first_row, member.rows), expected), 0.04);
      EXPECT_LT(RelativeError(backward.narrow(1, member.first_row, member.rows), expected.t()),
                0.04);
    }
  }
}

}  // namespace
}  // namespace sft::engine
