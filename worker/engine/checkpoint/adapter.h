#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/spec/job_spec.h"
#include "common/spec/module_patterns.h"
#include "worker/engine/checkpoint/safetensors.h"
#include "worker/engine/checkpoint/safetensors_writer.h"

// LoRA adapters in PEFT's layout: adapter_config.json and adapter_model.safetensors with the keys
// base_model.model.<module>.lora_A.weight [r, in], ....lora_B.weight [out, r] and with DoRA
// ....lora_magnitude_vector [out], modules named as they are at run time (plan::RuntimeModule).

namespace sft::engine {

// The adapter's settings, as adapter_config.json has them.
struct AdapterConfig {
  int r = 0;
  double alpha = 0;
  double dropout = 0;
  // Suffixes of module names, as PEFT matches them.
  std::vector<std::string> target_modules;
  std::string target_pattern;  // a regular expression to be written instead, if not empty
  std::string bias = "none";   // none, all, lora_only
  bool use_rslora = false;
  bool use_dora = false;
  spec::LoraInit init = spec::LoraInit::kKaiming;  // written, not read
  // Ends of the names of parameters that are adapted: stacks of experts' weights.
  std::vector<std::string> target_parameters;
  // "PATTERN=NUMBER" as lora.rank_pattern and lora.alpha_pattern have them.
  std::vector<std::string> rank_pattern, alpha_pattern;
  // Ends of the names of modules that are trained whole, and whether a head that is tied to the
  // embedding stays so.
  std::vector<std::string> modules_to_save;
  bool ensure_weight_tying = false;
  bool fan_in_fan_out = false;  // the base keeps its weights as [in, out] (GPT-2); factors do not
  // The model as the job named it: a directory or a hub id.
  std::string base_model;

  // alpha / r, or alpha / sqrt(r) with use_rslora: of modules that no pattern matches.
  double Scale() const;
  // Rank and scale of each module. InvalidArgument for patterns that cannot be understood.
  absl::StatusOr<spec::LoraSizes> Sizes() const;
};

// The two factors of one adapted module, and its magnitude.
struct LoraPair {
  std::string module;  // "model.layers.0.self_attn.q_proj", as the base model's files name it
  at::Tensor a;        // [r, in]
  at::Tensor b;        // [out, r]
  at::Tensor magnitude = {};  // [out], with use_dora; else undefined
  // Of a stack, whose experts' factors lie one below the other: a [experts * r, in],
  // b [experts * out, r]; 0: of one linear.
  int64_t experts = 0;
  // Multiplies the product; set in an adapter that was read.
  double scale = 0;
};

// Target of an adapter and the files to put beside it.
struct AdapterFiles {
  std::filesystem::path target;  // directory; replaced whole when it exists
  // Model directory whose tokenizer and chat template are put beside the adapter; empty: none.
  std::filesystem::path source;
  std::string chat_template;  // as ModelWriterOptions
  std::string base_prefix;    // plan::ModelShape::prefix of the base model
  std::string tied_table;     // the weight that is the head's too, or nothing
};

// Writes the adapter on the calling rank, reads it back and compares every byte before it appears
// under its name. `others`: trained biases and modules_to_save under the model's own names
// ("model...q_proj.bias"); of a tied head, the embedding alone, which the file then has twice, as
// PEFT's. Tensors are written as they are (fp32). Throws InfrastructureError (disk), InternalError
// (shapes).
void WriteAdapter(const AdapterFiles& files, const AdapterConfig& config,
                  std::span<const LoraPair> pairs, std::span<const NamedTensor> others = {});

// An adapter made by us or by PEFT. Tensors are views of the mapped file.
struct Adapter {
  AdapterConfig config;
  std::vector<LoraPair> pairs;  // ordered by module name
  // Trained biases, and the parameters of modules_to_save, under the model's own names.
  std::vector<NamedTensor> others;

  // All tensors by the names of the layout's parameters. `tied_head`: the model's head has the
  // embedding's weight. Throws UserError for an adapter that gives it two.
  std::map<std::string, at::Tensor> Values(bool tied_head) const;
};

// Throws UserError naming the file and what to do: missing files, not a LoRA adapter, features we
// do not apply (lora_bias, layer_replication ...), a factor without its partner, shapes that
// contradict r and rank_pattern.
// `base_prefix`: plan::ModelShape::prefix of the base model, whose names the modules then have.
Adapter ReadAdapter(const std::filesystem::path& dir, std::string_view base_prefix = {});

// Throws UserError where the adapter names another model of a hub ("org/name") than `model`; a
// folder's name says nothing.
void CheckBase(const AdapterConfig& config, std::string_view model);

}  // namespace sft::engine
