#include "worker/engine/train/stored_tensor.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "tests/unit/worker/engine/model/stored_model.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "worker/engine/base/error.h"
#include "worker/engine/model/adapters.h"
#include "worker/engine/model/config.h"
#include "worker/engine/model/families.h"
#include "worker/engine/train/base_weights.h"
#include "worker/engine/train/delivery.h"

namespace sft::engine {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

// All of a unit's quantised weights as the source gives them.
void ExpectWeights(WeightSource& source, const ModelLayout& layout, const StoredModel& model) {
  for (int unit = 0; unit < layout.size(); ++unit) {
    const AcquiredUnit acquired(source, layout, unit);
    for (size_t i = 0; i < layout.units[unit].params.size(); ++i) {
      const ParamInfo& param = layout.units[unit].params[i];
      if (param.role != ParamRole::kLinear) continue;
      EXPECT_TRUE(at::equal(acquired.weights().params[i], model.Expected(param))) << param.name;
    }
  }
}

void ExpectRanges(const BaseWeights& base, const StoredModel& model) {
  for (const UnitInfo& unit : model.layout().units) {
    for (const ParamInfo& param : unit.params) {
      const int64_t n = param.numel();
      const Tensor whole = model.Expected(param).view({-1});
      for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
               {0, n}, {0, 0}, {n - 1, 1}, {n / 3, n / 2}, {1, n / 5 + 1}, {n / 2, 3}}) {
        EXPECT_TRUE(
            at::equal(base.Read(param, first, count).to(at::kFloat), whole.narrow(0, first, count)))
            << param.name << " from " << first;
      }
    }
  }
}

class StoredNf4Test : public testing::TestWithParam<Nf4Style> {};

TEST_P(StoredNf4Test, IsHeldBitForBitWholeAndInParts) {
  for (const std::string plain : {"none", "k_proj", "mlp"}) {
    StoredModel model(OddConfig(kBnb));
    model.PutAll([&](const ParamInfo& param) { model.PutNf4(param, GetParam()); }, plain);
    const std::filesystem::path dir = model.Write();
    ModelLayout layout = model.layout();
    const BaseWeights base(dir, layout, at::kCPU);
    EXPECT_EQ(base.nested(), GetParam().held_nested);
    base.QuantizeAsStored(layout);
    ExpectRanges(base, model);
    for (const int world : {1, 3}) {
      RunRanks(world, [&](Communicator& comm) {
        const auto source = LoadFrozen(layout, base, {.bits = 4, .sharded = world > 1}, comm);
        ExpectWeights(*source, layout, model);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Styles, StoredNf4Test,
                         testing::Values(Nf4Style{"as_held"},
                                         Nf4Style{"another_map", 64, 256, true, false},
                                         Nf4Style{"blocks_of_128", 128, 256, false, false},
                                         Nf4Style{"nested_blocks_of_64", 64, 64, false, false},
                                         Nf4Style{"plain_scales", 64, 0, false, false},
                                         Nf4Style{"plain_scales_of_256", 256, 0, false, false}),
                         [](const auto& info) { return info.param.name; });

TEST(StoredFp8Test, IsMultipliedOutInAnyPart) {
  for (const at::ScalarType scales : {at::kFloat, at::kByte, at::kFloat8_e8m0fnu}) {
    for (const bool one_scale : {false, true}) {
      StoredModel model(OddConfig(one_scale ? kFp8Tensors : kFp8));
      model.PutAll([&](const ParamInfo& param) { model.PutFp8(param, one_scale, scales); },
                   "o_proj");
      model.Put("model.layers.0.mlp.up_proj.activation_scale", model.Uniform({}));
      const std::filesystem::path dir = model.Write();
      const BaseWeights base(dir, model.layout(), at::kCPU);
      ExpectRanges(base, model);
      const auto comm = MakeLocalCommunicator(at::kCPU);
      ExpectWeights(*LoadFrozen(model.layout(), base, {.bits = 0}, *comm), model.layout(), model);
    }
  }
}

void ExpectRefused(StoredModel& model, const std::string& says) {
  try {
    ModelLayout layout = model.layout();
    const BaseWeights base(model.Write(), layout, at::kCPU);
    if (layout.stored.form == plan::StoredForm::kNf4) base.QuantizeAsStored(layout);
    ADD_FAILURE() << "read, not refused: " << says;
  } catch (const UserError& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr(says));
  }
}

TEST(StoredTensorTest, FourBitsThatDoNotBelongTogetherAreRefusedByName) {
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  const auto refused = [&](const auto& change, const std::string& says) {
    StoredModel model(OddConfig(kBnb));
    model.PutAll([&](const ParamInfo& param) { model.PutNf4(param, {}); });
    change(model);
    ExpectRefused(model, says);
  };
  const std::string state = name + ".quant_state.bitsandbytes__nf4";
  const auto put_state = [&](const std::string& json) {
    return [&, json](StoredModel& model) {
      std::string text = json;
      model.Put(state,
                at::from_blob(text.data(), {static_cast<int64_t>(text.size())}, at::kByte).clone());
    };
  };
  refused([&](StoredModel& model) { model.Remove(name + ".absmax"); },
          "the weights hold " + name + " in 4 bits, but not " + name + ".absmax");
  refused([&](StoredModel& model) { model.Remove(name + ".quant_map"); }, name + ".quant_map");
  refused(
      [&](StoredModel& model) {
        model.Put(name, model.Bytes(7).view({-1, 1}));
      },
      name + " has 7 bytes, 37293 elements of 4 bits are 18647");
  refused(
      [&](StoredModel& model) { model.Put(name + ".absmax", model.Bytes(9)); },
      name + ".absmax has 9 elements of U8, " + name + " of shape [401, 93] asks for 583 of U8");
  refused([&](StoredModel& model) { model.Put(name + ".nested_absmax", model.Uniform({1})); },
          name + ".nested_absmax has 1 elements of F32");
  refused([&](StoredModel& model) { model.Put(name + ".quant_map", model.Uniform({16})); },
          name + ".quant_map does not hold the values of NF4");
  refused([&](StoredModel& model) { model.Remove(state); }, name + " has shape [18647, 1]");
  refused(put_state("["), state + " is not the JSON object");
  refused(put_state("{}"), state + " has no \"shape\"");
  refused(put_state(R"({"shape": [93, 401], "blocksize": 64})"),
          name + " has shape [93, 401], config.json asks for [401, 93]");
  refused(put_state(R"({"shape": [401, 93], "blocksize": 32})"),
          name + " is in blocks of 32 elements");
  refused(put_state(R"({"shape": [401, 93], "blocksize": 64})"), "has no \"nested_blocksize\"");
  refused([&](StoredModel& model) { model.Put(name + ".more", model.Bytes(1)); },
          "the weights hold " + name + ".more");
}

TEST(StoredTensorTest, ConfigAndWeightsMustSayTheSame) {
  StoredModel plain(OddConfig(kBnb));
  ExpectRefused(plain, "says that the weights are stored in 4 bits, but none is");
  StoredModel fp8(OddConfig(kBnb));
  fp8.PutAll([&](const ParamInfo& param) { fp8.PutFp8(param, false, at::kFloat); });
  ExpectRefused(fp8, "has type F8_E4M3, and config.json has no quantization_config that says how");
  StoredModel unscaled(OddConfig(kFp8));
  unscaled.PutAll([&](const ParamInfo& param) { unscaled.PutFp8(param, false, at::kFloat); });
  unscaled.Remove("model.layers.1.self_attn.q_proj.weight_scale_inv");
  ExpectRefused(unscaled, "but not model.layers.1.self_attn.q_proj.weight_scale_inv");
  StoredModel other(OddConfig(kFp8));
  other.PutAll([&](const ParamInfo& param) { other.PutFp8(param, false, at::kFloat); });
  other.Put("model.layers.1.mlp.up_proj.weight_scale_inv", other.Uniform({1, 1}));
  ExpectRefused(other, "model.layers.1.mlp.up_proj.weight_scale_inv has shape [1, 1] and type F32");
  StoredModel four(OddConfig(kFp8));
  four.PutAll([&](const ParamInfo& param) { four.PutNf4(param, {}); });
  ExpectRefused(four, "config.json asks for [");
}

TEST(StoredFp8Test, ADeliveredModelIsPlainInAllItsParts) {
  StoredModel model(R"({"model_type": "mistral3", "vision_config": {}, "text_config": )" +
                    TinyConfig(std::string(R"(, "quantization_config": )") + kFp8) + "}");
  model.PutAll([&](const ParamInfo& param) { model.PutFp8(param, false, at::kFloat); });
  const ParamInfo tower{"vision_tower.proj.weight", {150, 130}};
  model.PutFp8(tower, false, at::kFloat);
  model.Put("vision_tower.norm.weight", model.Uniform({7}));
  const std::filesystem::path dir = model.Write();
  spec::JobSpec job;
  job.training.mode = spec::Mode::kFullFinetune;
  const auto comm = MakeLocalCommunicator(at::kCPU);
  const TrainingModel trained(job, dir, *comm);
  const TempDir out;
  const DeliveryResult result = Deliver(
      trained, job, {.target = out / "model", .model_dir = dir, .model_name = "tiny"}, *comm);
  EXPECT_TRUE(result.consistency.consistent);
  const ModelConfig config = ReadConfig(out / "model");
  EXPECT_EQ(config.stored.form, plan::StoredForm::kPlain);
  const ModelFiles files = ModelFiles::Open(out / "model");
  EXPECT_TRUE(at::equal(files.View(tower.name), model.Expected(tower)));
  EXPECT_FALSE(files.Contains(tower.name + "_scale_inv"));
  EXPECT_TRUE(files.Contains("vision_tower.norm.weight"));
  for (const UnitInfo& unit : model.layout().units) {
    for (const ParamInfo& param : unit.params) {
      EXPECT_TRUE(at::equal(files.View(param.name), model.Expected(param))) << param.name;
    }
  }
}

TEST(StoredTensorTest, AJobThatFourBitsCannotServeIsRefused) {
  StoredModel model(OddConfig(kBnb));
  ModelLayout layout = model.layout();
  spec::JobSpec job;
  job.training.mode = spec::Mode::kFullFinetune;
  try {
    PrepareLayout(layout, job);
    ADD_FAILURE() << "not refused";
  } catch (const UserError& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr("training.mode: the model's weights are"));
  }
}

}  // namespace
}  // namespace sft::engine
