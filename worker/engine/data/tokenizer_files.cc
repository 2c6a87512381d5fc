#include "worker/engine/data/tokenizer_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "common/base/json.h"
#include "common/io/model_folder.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/ffi.h"
#include "worker/engine/data/files.h"

namespace sft::engine {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr char kSaveIt[] =
    "save the model's tokenizer with transformers (tokenizer.save_pretrained), which writes "
    "tokenizer.json";

std::string ModelType(const TextFiles& files) {
  const Json& type = Member(files.config, "model_type");
  return type.is_string() ? type.get<std::string>() : "";
}

// How models of a type split a text before a tiktoken vocabulary is used; empty: not known.
std::string_view SplitOfTiktoken(std::string_view model_type) {
  constexpr std::string_view kLlama =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
      R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  return model_type.starts_with("llama") || model_type == "mllama" ? kLlama : "";
}

// The class that says how vocab.json and merges.txt are used. Models of these types split texts in
// ways that only a tokenizer.json tells, whatever class their files name.
std::string ClassOfMerges(const TextFiles& files) {
  const std::string type = ModelType(files);
  for (const std::string_view own : {"granite", "mistral", "ministral", "mixtral", "phi3"}) {
    if (type.starts_with(own)) return {};
  }
  return type == "olmo2" || type == "olmo3" ? "" : TokenizerClass(files);
}

// The end of the sentence that says what was made of a vocabulary.
std::string UsedAs(const io::TokenizerSource& source, std::string_view bytes,
                   const std::string& tokenizer_class) {
  if (source.vocabulary == "tekken.json") return "";
  if (source.merges.empty() && !bytes.starts_with('\n')) return ", which is a tiktoken vocabulary";
  if (!tokenizer_class.empty()) return ", as a " + tokenizer_class;
  return ", without a space before a text, as no tokenizer_class is named in tokenizer_config.json "
         "(Llama 2 and Mistral have LlamaTokenizer)";
}

TokenizerText Convert(const TextFiles& files, const io::TokenizerSource& source) {
  const fs::path vocabulary = files.dir / source.vocabulary;
  const std::string bytes = ReadTextFile(vocabulary);
  std::string merges;
  if (!source.merges.empty()) merges = ReadTextFile(files.dir / source.merges) + "\n";
  const std::string name = merges.empty() ? TokenizerClass(files) : ClassOfMerges(files);
  const Json request = {{"class", name},
                        {"defaults", SpecialTokensOfClass(name)},
                        {"tokenizer_config", files.tokenizer_config},
                        {"special_tokens_map", files.special_tokens_map},
                        {"added_tokens", ReadOptionalJson(files.dir / "added_tokens.json")},
                        {"pattern", SplitOfTiktoken(ModelType(files))}};
  const std::string text = DumpJson(request);
  const FfiResult result(sft_tokenizer_convert(text.data(), text.size(), bytes.data(), bytes.size(),
                                               merges.data(), merges.size()));
  if (!result.ok()) {
    throw UserError(fmt::format("{}: no tokenizer can be made of it: {}; {}", vocabulary.string(),
                                result.text(), kSaveIt));
  }
  return {.json = std::string(result.text()),
          .origin = vocabulary.string(),
          .note = fmt::format("tokenizer.json is made of {}{}{}{}", source.vocabulary,
                              merges.empty() ? "" : " and ", source.merges,
                              UsedAs(source, bytes, name))};
}

// The one of `wanted` in a list of named templates; "default", or the only one, where it is empty.
TemplateText FromNamedList(const Json& list, const std::string& origin, std::string_view wanted) {
  const Json* chosen = list.size() == 1 && wanted.empty() ? &list.front() : nullptr;
  std::vector<std::string> names;
  for (const Json& entry : list) {
    const Json& name = Member(entry, "name");
    if (!name.is_string()) continue;
    names.push_back(name.get<std::string>());
    if (names.back() == (wanted.empty() ? "default" : wanted)) chosen = &entry;
  }
  if (chosen == nullptr || !Member(*chosen, "template").is_string()) {
    throw UserError(fmt::format(
        "{}: none of its chat templates is named \"{}\": they are {}; name one of them with "
        "data.chat_template, or give a template's text",
        origin, wanted.empty() ? "default" : wanted, fmt::join(names, ", ")));
  }
  return {Member(*chosen, "template").get<std::string>(), origin};
}

}  // namespace

TokenizerText ReadTokenizer(const TextFiles& files) {
  const io::TokenizerSource* const source =
      io::FindTokenizer([&files](std::string_view name) { return FileExists(files.dir / name); });
  if (source == nullptr) {
    throw UserError(
        fmt::format("{} has no tokenizer: {}; {}", files.dir.string(), io::kNoTokenizer, kSaveIt));
  }
  const fs::path path = files.dir / source->vocabulary;
  if (source->vocabulary == "tokenizer.json") return {ReadTextFile(path), path.string(), {}};
  return Convert(files, *source);
}

// Transformers' order: the file of its own comes before tokenizer_config.json's key.
TemplateText FindTemplate(const TextFiles& files, std::string_view wanted) {
  const bool is_text = wanted.find('{') != std::string_view::npos;
  if (is_text) return {std::string(wanted), "data.chat_template"};
  const fs::path jinja = files.dir / "chat_template.jinja";
  if (wanted.empty() && FileExists(jinja)) return {ReadTextFile(jinja), jinja.string()};
  const fs::path json_path = files.dir / "chat_template.json";
  for (const auto& [path, file] :
       {std::pair{json_path, ReadOptionalJson(json_path)},
        std::pair{files.dir / "tokenizer_config.json", files.tokenizer_config}}) {
    const Json& value = Member(file, "chat_template");
    if (value.is_array()) return FromNamedList(value, path.string(), wanted);
    if (wanted.empty() && value.is_string()) return {value.get<std::string>(), path.string()};
  }
  if (wanted.empty()) return {};
  throw UserError(fmt::format(
      "data.chat_template \"{}\" is no Jinja text, and {} has no list of named chat templates in "
      "tokenizer_config.json; give a template's text, or leave it out",
      wanted, files.dir.string()));
}

}  // namespace sft::engine
