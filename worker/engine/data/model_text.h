#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace sft::engine {

// The small JSON files about texts of a model directory; null where there is none.
struct TextFiles {
  // Throws UserError when one of them is not a JSON object.
  explicit TextFiles(const std::filesystem::path& model_dir);

  std::filesystem::path dir;
  nlohmann::ordered_json tokenizer_config;
  nlohmann::ordered_json special_tokens_map;
  nlohmann::ordered_json generation_config;
  nlohmann::ordered_json config;
};

// An object, or null when there is no such file. Throws UserError when it is something else.
nlohmann::ordered_json ReadOptionalJson(const std::filesystem::path& path);

// The value of `key`, or null. A missing file has no keys.
const nlohmann::ordered_json& Member(const nlohmann::ordered_json& object, const char* key);

// The text of a special token ("bos_token") as the files give it; empty: none does.
std::string SpecialTokenText(const TextFiles& files, const char* key);

// The text of a special token that the tokenizer's class has where no file has the key at all.
std::string SpecialTokenOfClass(const TextFiles& files, const char* key);

// The class of transformers that a model's tokenizer has, without "Fast" at its end: named by
// tokenizer_config.json or config.json, else that of the model's type. Empty: none is known.
std::string TokenizerClass(const TextFiles& files);

// The special tokens that such a class has where no file says otherwise, by their keys in
// tokenizer_config.json. An empty object for a class that has none.
nlohmann::ordered_json SpecialTokensOfClass(std::string_view tokenizer_class);

}  // namespace sft::engine
