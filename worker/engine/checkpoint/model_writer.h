#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "worker/engine/checkpoint/safetensors_writer.h"

namespace sft::engine {

// Target and sources of a model to write.
struct ModelWriterOptions {
  // The finished directory; replaced whole when it exists.
  std::filesystem::path target;
  // The model directory the training started from: its config.json (with the type of the written
  // weights in it), generation_config.json, tokenizer files and chat template are copied.
  std::filesystem::path source;
  // The text or name of a chat template used in the training; empty: the model's own template.
  std::string chat_template;
  // Tokenizer files and template come from here instead; empty: from `source`.
  std::filesystem::path tokenizer = {};
  std::map<std::string, std::string> metadata = {};  // of the weights' files
  // A tensor larger than this has a shard of its own.
  uint64_t max_shard_bytes = 5'000'000'000;
};

// Writes a full model as transformers does: model.safetensors, or model-00001-of-0000N.safetensors
// with model.safetensors.index.json. One rank owns it and gives the tensors in any order, one at a
// time; nothing is visible before Commit, which reads the headers back and checks them.
// Errors as SafetensorsWriter. Thread-compatible.
class ModelWriter {
 public:
  // `infos`: name, dtype and shape of every tensor, in the order in which shards are filled. Tied
  // tensors (lm_head of a tied model) are left out by the caller, as transformers does.
  ModelWriter(ModelWriterOptions options, std::vector<TensorInfo> infos);
  ~ModelWriter();

  void Write(std::string_view name, const at::Tensor& tensor);
  void Commit();

 private:
  void PlanShards(std::vector<TensorInfo> infos);
  SafetensorsWriter& Shard(std::string_view name);
  void WriteIndex() const;

  ModelWriterOptions options_;
  StagedDirectory staged_;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
  std::vector<std::string> names_;  // of the shards
  std::map<std::string, size_t, std::less<>> place_;
  uint64_t total_bytes_ = 0;
};

// Copies config.json's companions (generation_config.json, tokenizer files, chat template) from one
// model directory to another, with the tokenizer.json that training made where there was none; with
// `chat_template` not empty that text, or the model's template of that name, replaces the template.
void CopyTokenizerFiles(const std::filesystem::path& source, const std::filesystem::path& target,
                        std::string_view chat_template);

}  // namespace sft::engine
