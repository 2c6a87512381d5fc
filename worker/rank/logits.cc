#include "worker/rank/logits.h"

#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <vector>

#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/safetensors.h"
#include "worker/engine/checkpoint/safetensors_writer.h"
#include "worker/engine/generate/generator.h"
#include "worker/rank/device.h"

namespace sft::rank {
namespace {

constexpr char kTokens[] = "input_ids";

// [rows, length] int64, every id below `vocabulary`.
at::Tensor ReadTokens(const std::string& path, int64_t vocabulary) {
  const at::Tensor tokens = engine::SafetensorsFile::Open(path)->View(kTokens);
  const auto refuse = [&path](const std::string& what) {
    throw engine::UserError(fmt::format("{}: {} {}", path, kTokens, what), "bad_tokens",
                            "Give a safetensors file with input_ids, int64 [rows, length].");
  };
  if (tokens.scalar_type() != at::kLong || tokens.dim() != 2 || tokens.numel() == 0) {
    refuse("is not int64 of the shape [rows, length]");
  }
  const std::span<const int64_t> ids(tokens.const_data_ptr<int64_t>(),
                                     static_cast<size_t>(tokens.numel()));
  for (const int64_t id : ids) {
    if (id < 0 || id >= vocabulary) {
      refuse(fmt::format("holds {}, but the model's vocabulary has {} tokens", id, vocabulary));
    }
  }
  return tokens;
}

}  // namespace

void RunLogits(const Arguments& arguments) {
  const Device device = OpenDevice(arguments.device);
  engine::Generator generator(
      {.model_dir = arguments.model, .adapter_dir = arguments.adapter, .device = device.torch});
  const at::Tensor tokens = ReadTokens(arguments.tokens, generator.config().vocab);
  const int64_t length = tokens.size(1);
  std::vector<at::Tensor> rows;
  for (int64_t row = 0; row < tokens.size(0); ++row) {
    const int64_t* first = tokens.const_data_ptr<int64_t>() + row * length;
    const std::vector<int32_t> ids(first, first + length);
    rows.push_back(generator.Logits(ids).to(at::kCPU, at::kFloat));
  }
  const std::vector<engine::NamedTensor> tensors{{kTokens, tokens}, {"logits", at::stack(rows)}};
  engine::WriteSafetensors(arguments.out, tensors);
}

}  // namespace sft::rank
