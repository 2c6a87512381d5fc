#include "worker/engine/checkpoint/model_writer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/io/model_folder.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/disk.h"
#include "worker/engine/data/model_text.h"
#include "worker/engine/data/tokenizer_files.h"

namespace sft::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int64_t kMaxTextBytes = int64_t{1} << 28;

std::string ReadText(const fs::path& path) {
  auto text = io::ReadFile(path.string(), kMaxTextBytes);
  if (!text.ok()) throw UserError(std::string(Message(text.status())), "file_not_readable");
  return *std::move(text);
}

// The name transformers gives a type in config.json.
std::string TorchName(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      return "float32";
  }
}

// The config of the source with the type of the weights as they are now.
void WriteConfig(const fs::path& source, const fs::path& target, at::ScalarType type) {
  ordered_json config = ParseOrderedJson(ReadText(source));
  if (!config.is_object()) {
    throw UserError(fmt::format("{} is not a JSON object", source.string()), "broken_config");
  }
  const char* key =
      config.contains("dtype") && !config.contains("torch_dtype") ? "dtype" : "torch_dtype";
  config[key] = TorchName(type);
  // Weights are written as they are computed with, whatever the source was quantised to.
  config.erase("quantization_config");
  if (config.contains("text_config") && config["text_config"].is_object()) {
    config["text_config"].erase("quantization_config");
  }
  WriteTextFile(target, DumpJson(config, 2) + "\n");
}

// The template of a job replaces the one in tokenizer_config.json too: older readers look there.
void WriteTemplate(const fs::path& target, std::string_view chat_template) {
  WriteTextFile(target / "chat_template.jinja", chat_template);
  CheckDisk(io::RemoveAll((target / "chat_template.json").string()));
  const fs::path path = target / "tokenizer_config.json";
  ordered_json config = ordered_json::object();
  if (fs::exists(path)) {
    config = ParseOrderedJson(ReadText(path));
    if (!config.is_object()) {
      throw UserError(fmt::format("{} is not a JSON object", path.string()), "broken_config");
    }
  }
  config["chat_template"] = chat_template;
  WriteTextFile(path, DumpJson(config, 2) + "\n");
}

}  // namespace

void CopyTokenizerFiles(const fs::path& source, const fs::path& target,
                        std::string_view chat_template) {
  for (const std::string_view name : io::kModelCompanions) {
    if (fs::exists(source / name)) WriteTextFile(target / name, ReadText(source / name));
  }
  const bool is_whole = fs::exists(source / "tokenizer.json");
  const auto exists = [&source](std::string_view name) { return fs::exists(source / name); };
  if (!is_whole && io::FindTokenizer(exists) != nullptr) {
    WriteTextFile(target / "tokenizer.json", ReadTokenizer(TextFiles(source)).json);
  }
  if (!chat_template.empty()) {
    WriteTemplate(target, FindTemplate(TextFiles(source), chat_template).source);
  }
}

ModelWriter::ModelWriter(ModelWriterOptions options, std::vector<TensorInfo> infos)
    : options_(std::move(options)), staged_(options_.target) {
  if (infos.empty()) throw InternalError("a model without tensors");
  const at::ScalarType type = infos.front().dtype;
  PlanShards(std::move(infos));
  WriteConfig(options_.source / "config.json", staged_.path() / "config.json", type);
  CopyTokenizerFiles(options_.source, staged_.path(), options_.chat_template);
  if (!options_.tokenizer.empty()) CopyTokenizerFiles(options_.tokenizer, staged_.path(), "");
}

ModelWriter::~ModelWriter() = default;

void ModelWriter::PlanShards(std::vector<TensorInfo> infos) {
  std::vector<std::vector<TensorInfo>> shards(1);
  uint64_t filled = 0;
  for (TensorInfo& info : infos) {
    const uint64_t bytes = static_cast<uint64_t>(info.numel()) * c10::elementSize(info.dtype);
    if (filled > 0 && filled + bytes > options_.max_shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    total_bytes_ += bytes;
    if (!place_.emplace(info.name, shards.size() - 1).second) {
      throw InternalError(fmt::format("tensor \"{}\" is given twice", info.name));
    }
    shards.back().push_back(std::move(info));
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    names_.push_back(shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
    writers_.push_back(std::make_unique<SafetensorsWriter>(
        staged_.path() / names_[i], std::move(shards[i]), options_.metadata));
  }
}

SafetensorsWriter& ModelWriter::Shard(std::string_view name) {
  const auto found = place_.find(name);
  if (found == place_.end()) {
    throw InternalError(fmt::format("tensor \"{}\" is not part of the model to write", name));
  }
  return *writers_[found->second];
}

void ModelWriter::Write(std::string_view name, const at::Tensor& tensor) {
  Shard(name).Write(name, tensor);
}

void ModelWriter::WriteIndex() const {
  ordered_json index;
  index["metadata"] = {{"total_size", total_bytes_}};
  ordered_json map = ordered_json::object();
  for (const auto& [name, shard] : place_) map[name] = names_[shard];
  index["weight_map"] = std::move(map);
  WriteTextFile(staged_.path() / "model.safetensors.index.json", DumpJson(index, 2) + "\n");
}

void ModelWriter::Commit() {
  for (const auto& writer : writers_) writer->Commit();
  if (writers_.size() > 1) WriteIndex();
  // Read back as any user of the model will.
  const ModelFiles written = ModelFiles::Open(staged_.path());
  if (written.TotalBytes() != total_bytes_ || written.Names().size() != place_.size()) {
    throw InternalError(fmt::format("the model read back from {} differs from what was written",
                                    staged_.path().string()));
  }
  staged_.Commit();
}

}  // namespace sft::engine
