#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <string>

#include "worker/engine/export/gguf_file.h"
#include "worker/engine/model/config.h"

namespace sft::engine {

// A model directory to be written as GGUF.
struct GgufOptions {
  std::filesystem::path model_dir;
  std::filesystem::path target;  // the file
  // The type of matrices; other tensors are F32, and so are matrices whose rows do not fit Q8_0.
  GgmlType type = GgmlType::kBf16;
  std::string name;        // general.name
  std::string base_model;  // id on a hub; empty: none
  // Called before each tensor; what it throws ends the work. Null: nothing is called.
  std::function<void()> on_tensor;
};

// Throws UserError for a model that cannot be written so, as far as config.json and tokenizer show:
// before any work.
void CheckGguf(const std::filesystem::path& model_dir, const ModelConfig& config);

// Writes the whole model into one file, tensor by tensor, as llama.cpp's converter would: names,
// the turned rows of Llama's queries and keys, the factors of Llama 3's ropes, tokenizer and
// template.
void WriteGguf(const GgufOptions& options);

// The Modelfile with which Ollama imports the file: what it is made of, and each text that ends an
// answer.
std::string ModelfileText(const std::filesystem::path& model_dir, const std::string& file);

}  // namespace sft::engine
