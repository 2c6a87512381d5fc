#include "common/plan/stored_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/plan/tensors.h"

namespace sft::plan {
namespace {

constexpr int64_t kFp8Block = 128;
constexpr char kUseOriginal[] =
    "use the original weights, which QLoRA quantises when they are loaded";

// As transformers skips modules: a name that begins or ends with the entry.
bool Names(const std::string& entry, std::string_view module) {
  return !entry.empty() && (module.starts_with(entry) || module.ends_with(entry));
}

void ReadNf4(const ConfigReader& config, StoredWeights& stored) {
  stored.form = StoredForm::kNf4;
  if (config.Flag("load_in_8bit")) {
    config.Fail("load_in_8bit",
                "says that the weights are stored in 8 bits, which are not read: use the original "
                "weights with quantization.bits = 8, or a repository in 4 bits (\"-bnb-4bit\")");
  } else if (!config.Flag("load_in_4bit")) {
    config.Fail("load_in_4bit", fmt::format("must be true, of bitsandbytes' formats NF4 alone is "
                                            "read: {}",
                                            kUseOriginal));
  }
  const auto type = config.Get("bnb_4bit_quant_type", std::string("fp4"));
  if (type != "nf4") {
    config.Fail("bnb_4bit_quant_type",
                fmt::format("\"{}\" is not read, \"nf4\" is: {}", type, kUseOriginal));
  }
  const auto storage = config.Get("bnb_4bit_quant_storage", std::string("uint8"));
  if (storage != "uint8") {
    config.Fail("bnb_4bit_quant_storage",
                fmt::format("\"{}\" is not read, \"uint8\" is: {}", storage, kUseOriginal));
  }
  stored.double_quant = config.Flag("bnb_4bit_use_double_quant");
  stored.skipped = config.Get("llm_int8_skip_modules", std::vector<std::string>());
}

void ReadFp8(const ConfigReader& config, StoredWeights& stored) {
  stored.form = StoredForm::kFp8;
  const auto format = config.Get("fmt", std::string("e4m3"));
  if (format != "e4m3") {
    config.Fail("fmt", fmt::format("\"{}\" is not read, \"e4m3\" is: {}", format, kUseOriginal));
  }
  // A null stands for one scale a tensor.
  const bool whole = config.HasKey("weight_block_size") && !config.Has("weight_block_size");
  stored.block = whole ? 0 : kFp8Block;
  const std::vector<int64_t> known = {kFp8Block, kFp8Block};
  if (const auto block = config.Get("weight_block_size", known); block != known) {
    config.Fail("weight_block_size",
                fmt::format("must be [{0}, {0}] or null, other blocks are not read: {1}", kFp8Block,
                            kUseOriginal));
  }
  const char* skipped =
      config.Has("modules_to_not_convert") ? "modules_to_not_convert" : "ignored_layers";
  stored.skipped = config.Get(skipped, std::vector<std::string>());
}

}  // namespace

std::vector<std::pair<std::string, std::vector<int64_t>>> Mxfp4Shapes(
    const std::vector<int64_t>& shape, int64_t experts) {
  const int64_t outputs = shape[0] / experts, blocks = shape[1] / kMxfp4Block;
  return {{kMxfp4Blocks, {experts, outputs, blocks, kMxfp4Block / 2}},
          {kMxfp4Scales, {experts, outputs, blocks}}};
}

bool StoredWeights::Holds(std::string_view prefix, std::string_view module) const {
  if (form == StoredForm::kPlain) return false;
  const std::string at_run_time = RuntimeModule(prefix, module);
  return std::none_of(skipped.begin(), skipped.end(), [&](const std::string& entry) {
    return Names(entry, module) || Names(entry, at_run_time);
  });
}

StoredWeights ReadStoredWeights(const ConfigReader& config) {
  StoredWeights stored;
  const std::optional<ConfigReader> quantization = config.Object("quantization_config");
  if (!quantization) return stored;
  // Files of before transformers 4.36 name no method.
  const bool bitsandbytes = quantization->Has("load_in_4bit") || quantization->Has("load_in_8bit");
  const auto method =
      quantization->Get("quant_method", std::string(bitsandbytes ? "bitsandbytes" : ""));
  if (method == "bitsandbytes") {
    ReadNf4(*quantization, stored);
  } else if (method == "fp8") {
    ReadFp8(*quantization, stored);
  } else if (method == "mxfp4") {
    stored.form = StoredForm::kMxfp4;
    stored.skipped = quantization->Get("modules_to_not_convert", std::vector<std::string>());
  } else {
    quantization->Fail(
        "quant_method",
        fmt::format("\"{}\" is not read: {}; of quantised weights, those of bitsandbytes in NF4 "
                    "(\"-bnb-4bit\"), those in FP8 with blocks of 128 x 128 and experts in MXFP4 "
                    "are",
                    method, kUseOriginal));
  }
  return stored;
}

std::optional<spec::Problem> CheckStored(const StoredWeights& stored, const spec::JobSpec& job) {
  if (stored.form != StoredForm::kNf4) return std::nullopt;
  constexpr char kStored[] =
      "the model's weights are stored in 4 bits (quantization_config of its config.json)";
  if (job.full_finetune()) {
    return spec::Problem{
        "training.mode", 0,
        fmt::format("{}, and full fine-tuning cannot train those: use mode = \"lora\" with "
                    "use_qlora = true, or the original model",
                    kStored)};
  }
  if (!job.qlora()) {
    return spec::Problem{
        "training.use_qlora", 0,
        fmt::format("{}: use_qlora = true trains on them as they are; LoRA on weights that are not "
                    "quantised needs the original model",
                    kStored)};
  }
  if (job.quantization.bits == 4) return std::nullopt;
  return spec::Problem{
      "quantization.bits", 0,
      fmt::format("{}: quantization.bits = 4 trains on them as they are; {} needs the original "
                  "model",
                  kStored, job.quantization.bits)};
}

}  // namespace sft::plan
