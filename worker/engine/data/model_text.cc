#include "worker/engine/data/model_text.h"

#include <fmt/format.h>

#include <utility>

#include "common/base/json.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/files.h"

namespace sft::engine {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

struct ClassOfType {
  std::string_view model_type;
  std::string_view tokenizer_class;
};
constexpr ClassOfType kClasses[] = {
    {"gpt2", "GPT2Tokenizer"},
    {"phi", "GPT2Tokenizer"},
    {"starcoder2", "GPT2Tokenizer"},
    {"gpt_neox", "GPTNeoXTokenizer"},
    {"olmo", "GPTNeoXTokenizer"},
    {"qwen2", "Qwen2Tokenizer"},
    {"qwen2_moe", "Qwen2Tokenizer"},
    {"qwen3", "Qwen2Tokenizer"},
    {"qwen3_moe", "Qwen2Tokenizer"},
    {"qwen3_next", "Qwen2Tokenizer"},
    {"qwen3_5", "Qwen3_5Tokenizer"},
    {"qwen3_5_moe", "Qwen3_5Tokenizer"},
    {"qwen3_5_text", "Qwen3_5Tokenizer"},
    {"gemma", "GemmaTokenizer"},
    {"gemma2", "GemmaTokenizer"},
    {"gemma3", "GemmaTokenizer"},
    {"gemma3_text", "GemmaTokenizer"},
    {"gemma3n", "GemmaTokenizer"},
    {"gemma3n_text", "GemmaTokenizer"},
};

std::string TextOf(const Json& value) { return value.is_string() ? value.get<std::string>() : ""; }

// Special tokens are written as a string or as an object with `content`.
std::string TokenText(const Json& value) {
  return value.is_object() ? TextOf(Member(value, "content")) : TextOf(value);
}

}  // namespace

Json ReadOptionalJson(const fs::path& path) {
  if (!FileExists(path)) return nullptr;
  Json json = ParseOrderedJson(ReadTextFile(path));
  if (json.is_object()) return json;
  throw UserError(
      fmt::format("{}: not JSON, or not an object; copy the model directory anew", path.string()));
}

TextFiles::TextFiles(const fs::path& model_dir)
    : dir(model_dir),
      tokenizer_config(ReadOptionalJson(dir / "tokenizer_config.json")),
      special_tokens_map(ReadOptionalJson(dir / "special_tokens_map.json")),
      generation_config(ReadOptionalJson(dir / "generation_config.json")),
      config(ReadOptionalJson(dir / "config.json")) {}

const Json& Member(const Json& object, const char* key) {
  static const Json kNull;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? kNull : *found;
}

std::string SpecialTokenText(const TextFiles& files, const char* key) {
  for (const Json* file : {&files.tokenizer_config, &files.special_tokens_map}) {
    if (std::string text = TokenText(Member(*file, key)); !text.empty()) return text;
  }
  return {};
}

std::string SpecialTokenOfClass(const TextFiles& files, const char* key) {
  for (const Json* file : {&files.tokenizer_config, &files.special_tokens_map}) {
    // A key that is null says that there is none.
    if (file->is_object() && file->contains(key)) return {};
  }
  return TextOf(Member(SpecialTokensOfClass(TokenizerClass(files)), key));
}

std::string TokenizerClass(const TextFiles& files) {
  constexpr std::string_view kFast = "Fast";
  const std::string type = TextOf(Member(files.config, "model_type"));
  std::string name = TextOf(Member(files.tokenizer_config, "tokenizer_class"));
  if (name.empty()) name = TextOf(Member(files.config, "tokenizer_class"));
  if (name.ends_with(kFast)) name.resize(name.size() - kFast.size());
  // Models made of Qwen 2 name classes that are not theirs.
  if (!name.empty() && type != "qwen2") return name;
  for (const ClassOfType& known : kClasses) {
    if (known.model_type == type) return std::string(known.tokenizer_class);
  }
  return name;
}

Json SpecialTokensOfClass(std::string_view tokenizer_class) {
  constexpr char kEnd[] = "<|endoftext|>";
  if (tokenizer_class == "GPT2Tokenizer") {
    return {{"bos_token", kEnd}, {"eos_token", kEnd}, {"unk_token", kEnd}};
  }
  if (tokenizer_class == "GPTNeoXTokenizer") {
    return {{"bos_token", kEnd},
            {"eos_token", kEnd},
            {"unk_token", kEnd},
            {"pad_token", "<|padding|>"}};
  }
  if (tokenizer_class == "Qwen2Tokenizer" || tokenizer_class == "Qwen3_5Tokenizer") {
    return {{"eos_token", kEnd}, {"unk_token", kEnd}, {"pad_token", kEnd}};
  }
  if (tokenizer_class == "LlamaTokenizer") {
    return {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};
  }
  if (tokenizer_class == "GemmaTokenizer") {
    return {{"bos_token", "<bos>"},
            {"eos_token", "<eos>"},
            {"unk_token", "<unk>"},
            {"pad_token", "<pad>"},
            {"mask_token", "<mask>"}};
  }
  return Json::object();
}

}  // namespace sft::engine
