#include "tests/unit/worker/engine/model/stored_model.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <fstream>
#include <utility>

#include "tests/unit/worker/engine/model/tiny_model.h"
#include "worker/engine/checkpoint/safetensors_writer.h"
#include "worker/engine/kernels/nf4_tables.h"
#include "worker/engine/model/config.h"
#include "worker/engine/model/families.h"

namespace sft::engine {

using at::Tensor;

std::string OddConfig(const char* quantization) {
  return TinyConfig(R"(, "hidden_size": 93, "intermediate_size": 401, "head_dim": 14,
                       "quantization_config": )" +
                    std::string(quantization));
}

StoredModel::StoredModel(std::string config)
    : config_(std::move(config)),
      layout_(MakeLayout(ParseConfig(config_, "config.json"))),
      generator_(at::detail::createCPUGenerator(5)) {
  for (const UnitInfo& unit : layout_.units) {
    for (const ParamInfo& param : unit.params) {
      Put(param.name, at::randn(param.shape, generator_, at::kFloat).to(at::kBFloat16));
      expected_[param.name] = tensors_[param.name].to(at::kFloat);
    }
  }
}

Tensor StoredModel::Bytes(int64_t count) {
  return at::randint(256, {count}, generator_, at::kFloat).to(at::kByte);
}

Tensor StoredModel::Uniform(const std::vector<int64_t>& shape) {
  return at::rand(shape, generator_, at::kFloat).add_(0.5);
}

const std::filesystem::path& StoredModel::Write() {
  std::ofstream(dir_ / "config.json") << config_;
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor] : tensors_) tensors.push_back({name, tensor});
  WriteSafetensors(dir_ / "model.safetensors", tensors);
  return dir_.path();
}

void StoredModel::PutNf4(const ParamInfo& param, const Nf4Style& style) {
  const int64_t n = param.numel(), blocks = (n + style.block - 1) / style.block;
  const std::string& name = param.name;
  const Tensor values = at::from_blob(const_cast<float*>(kNf4Values), {16}, at::kFloat).clone();
  const Tensor codes = Bytes((n + 1) / 2);
  Put(name, codes.view({-1, 1}));
  Put(name + ".quant_map", values);
  std::string state = fmt::format(
      R"({{"quant_type": "nf4", "blocksize": {}, "dtype": "bfloat16", "shape": [{}, {}])",
      style.block, param.shape[0], param.shape[1]);
  Tensor absmax;
  if (style.nested_block > 0) {
    const Tensor absmax_codes = Bytes(blocks);
    const Tensor nested = Uniform({(blocks + style.nested_block - 1) / style.nested_block});
    Tensor map = at::from_blob(const_cast<float*>(kDynamicMap), {256}, at::kFloat).clone();
    if (style.own_map) map.mul_(0.75);
    const float offset = 1.1f;
    state += fmt::format(
        R"(, "nested_blocksize": {}, "nested_dtype": "float32", "nested_offset": {:.17g})",
        style.nested_block, static_cast<double>(offset));
    absmax = map.index_select(0, absmax_codes.to(at::kInt)) *
                 nested.repeat_interleave(style.nested_block).narrow(0, 0, blocks) +
             offset;
    Put(name + ".absmax", absmax_codes);
    Put(name + ".nested_absmax", nested);
    Put(name + ".nested_quant_map", map);
  } else {
    absmax = Uniform({blocks});
    Put(name + ".absmax", absmax);
  }
  state += "}";
  Put(name + ".quant_state.bitsandbytes__nf4",
      at::from_blob(state.data(), {static_cast<int64_t>(state.size())}, at::kByte).clone());
  const Tensor nibbles =
      at::stack({codes.div(16, "trunc"), codes.remainder(16)}, 1).view({-1}).narrow(0, 0, n);
  expected_[name] = (values.index_select(0, nibbles.to(at::kInt)) *
                     absmax.repeat_interleave(style.block).narrow(0, 0, n))
                        .view(param.shape);
}

void StoredModel::PutFp8(const ParamInfo& param, bool one_scale, at::ScalarType scales) {
  const int64_t rows = param.shape[0], columns = param.shape[1];
  const int64_t block = one_scale ? 1 << 20 : 128;
  const Tensor codes =
      at::randn(param.shape, generator_, at::kFloat).mul_(50).to(at::kFloat8_e4m3fn);
  const int64_t down = (rows + block - 1) / block, across = (columns + block - 1) / block;
  Tensor scale = Uniform({down, across}), factor = scale;
  if (scales != at::kFloat) {
    const Tensor bytes = Bytes(down * across).remainder(8).add(120).view({down, across});
    factor = at::pow(2.0, bytes.to(at::kFloat) - 127);
    scale = bytes.to(at::kByte).view(scales);
  }
  Put(param.name, codes);
  Put(param.name + "_scale_inv", one_scale ? scale.squeeze() : scale);
  expected_[param.name] = codes.to(at::kFloat) * (one_scale ? factor
                                                            : factor.repeat_interleave(block, 0)
                                                                  .narrow(0, 0, rows)
                                                                  .repeat_interleave(block, 1)
                                                                  .narrow(1, 0, columns));
}

}  // namespace sft::engine
