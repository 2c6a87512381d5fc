#include "tests/unit/worker/engine/model/tiny_model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>

#include <fstream>
#include <vector>

#include "worker/engine/checkpoint/safetensors_writer.h"
#include "worker/engine/model/config.h"
#include "worker/engine/model/families.h"
#include "worker/engine/weights/file_tensors.h"

namespace sft::engine {
namespace {

// Gemma 4 does not divide attention's scores: the weights of its heads' norms keep them small. With
// weights of 1 a softmax takes one key, and its gradients are mostly rounding.
bool ScalesScores(const std::string& config, const std::string& name) {
  return config.find("gemma4") != std::string::npos &&
         (name.ends_with("q_norm.weight") || name.ends_with("k_norm.weight"));
}

}  // namespace

std::string TinyConfig(const std::string& extra) {
  return R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 96,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "torch_dtype": "bfloat16")" +
         extra + "}";
}

void WriteTinyModel(const std::filesystem::path& dir, const std::string& config) {
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "config.json") << config;
  std::ofstream(dir / "tokenizer.json") << "{}";
  std::ofstream(dir / "tokenizer_config.json") << "{}";
  const ModelLayout layout = MakeLayout(ParseConfig(config, "config.json"));
  at::Generator generator = at::detail::createCPUGenerator(11);
  std::vector<NamedTensor> tensors;
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) {
      for (const FileTensor& tensor : FileTensorsOf(param)) {
        at::Tensor values = at::randn(tensor.shape, generator, at::kFloat).mul_(0.1);
        if (param.role == ParamRole::kNorm || param.role == ParamRole::kConstant) values.add_(1.0);
        if (ScalesScores(config, param.name)) values.mul_(0.25);
        tensors.push_back({tensor.name, values.to(at::kBFloat16)});
      }
    }
  }
  WriteSafetensors(dir / "model.safetensors", tensors);
}

}  // namespace sft::engine
