#include "worker/engine/model/config.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "worker/engine/base/error.h"

namespace sft::engine {

ModelConfig ParseConfig(std::string_view json, const std::string& folder) {
  absl::StatusOr<ModelConfig> config = plan::ParseModelConfig(json);
  if (config.ok()) return *std::move(config);
  throw UserError(folder + ": " + std::string(Message(config.status())), "bad_model",
                  "use a model directory as transformers writes it");
}

ModelConfig ReadConfig(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "config.json";
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw UserError("cannot read " + path.string(), "bad_model",
                    "give a model directory that holds config.json, the weights and the tokenizer");
  }
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return ParseConfig(text, model_dir.string());
}

}  // namespace sft::engine
