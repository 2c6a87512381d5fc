#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "worker/engine/weights/layout.h"

// Tiny models as quantised checkpoints store them, for tests of reading them.

namespace sft::engine {

// quantization_config.
inline constexpr char kBnb[] = R"({"quant_method": "bitsandbytes", "load_in_4bit": true,
    "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": true})";
inline constexpr char kFp8[] = R"({"quant_method": "fp8", "weight_block_size": [128, 128]})";
inline constexpr char kFp8Tensors[] = R"({"quant_method": "fp8", "weight_block_size": null})";

// A config.json with it. Rows of 93 elements, so that blocks cross rows and some weights have an
// odd number of elements; the largest weights have more than two cut units.
std::string OddConfig(const char* quantization);

// How bitsandbytes might have laid out a weight in 4 bits.
struct Nf4Style {
  std::string name;
  int64_t block = 64;
  int64_t nested_block = 256;  // 0: scales are not quantised
  bool own_map = false;        // scales by another table than bitsandbytes'
  bool held_nested = true;
};

// Any codes are a weight: what it stands for is computed here from the definition.
class StoredModel {
 public:
  // Plain and random to begin with.
  explicit StoredModel(std::string config);

  // Adds a tensor to the file, or replaces it.
  void Put(const std::string& name, const at::Tensor& tensor) { tensors_[name] = tensor; }
  void Remove(const std::string& name) { tensors_.erase(name); }
  at::Tensor Bytes(int64_t count);
  at::Tensor Uniform(const std::vector<int64_t>& shape);  // in [0.5, 1.5)

  // Has the file hold a weight so. Scales of FP8 are in fp32 or, as bytes, powers of two.
  void PutNf4(const ParamInfo& param, const Nf4Style& style);
  void PutFp8(const ParamInfo& param, bool one_scale, at::ScalarType scales);
  // Every linear but those of `plain`.
  template <typename PutOne>
  void PutAll(const PutOne& put, const std::string& plain = "none") {
    for (const UnitInfo& unit : layout_.units) {
      for (const ParamInfo& param : unit.params) {
        if (param.role == ParamRole::kLinear && param.name.find(plain) == std::string::npos) {
          put(param);
        }
      }
    }
  }

  // The model's folder, written anew.
  const std::filesystem::path& Write();
  const ModelLayout& layout() const { return layout_; }
  // What a weight stands for, fp32.
  const at::Tensor& Expected(const ParamInfo& param) const { return expected_.at(param.name); }

 private:
  TempDir dir_;
  std::string config_;
  ModelLayout layout_;
  at::Generator generator_;
  std::map<std::string, at::Tensor> tensors_, expected_;
};

}  // namespace sft::engine
