#include "worker/engine/export/gguf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/model_text.h"
#include "worker/engine/data/tokenizer_files.h"
#include "worker/engine/export/gguf_sentencepiece.h"

namespace sft::engine {
namespace {

using Json = nlohmann::json;

// Kinds of tokens, as llama.cpp numbers them.
constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

// How text is cut before the merges, by the expression that does it.
struct Cut {
  const char* name;   // llama.cpp's
  const char* regex;  // of the tokenizer.json
};
// The end that all have.
#define SFT_CUT_END R"(\s*[\r\n]+|\s+(?!\S)|\s+)"
#define SFT_CUT_SHORT R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define SFT_CUT_WORDS SFT_CUT_SHORT R"(|[^\r\n\p{L}\p{N}]?\p{L}+|)"
// Words by their capitals, each with an end.
#define SFT_CUT_CASES(end)                                                              \
  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)" end \
  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)" end
constexpr Cut kCuts[] = {
    {"llama-bpe", SFT_CUT_WORDS R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SFT_CUT_END},
    {"gpt-4o",
     SFT_CUT_CASES(SFT_CUT_SHORT "?|") R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" SFT_CUT_END},
    {"qwen2", SFT_CUT_WORDS R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SFT_CUT_END},
    {"tekken", SFT_CUT_CASES("|") R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" SFT_CUT_END},
};
#undef SFT_CUT_END
#undef SFT_CUT_WORDS
#undef SFT_CUT_CASES
#undef SFT_CUT_SHORT

std::string TypeOf(const Json& part) {
  return part.is_object() ? part.value("type", std::string()) : std::string();
}

// The parts of a pre-tokenizer in their order.
std::vector<Json> PartsOf(const Json& pre) {
  if (TypeOf(pre) != "Sequence") return {pre};
  const Json parts = pre.value("pretokenizers", Json::array());
  return {parts.begin(), parts.end()};
}

// llama.cpp's name for how a tokenizer.json cuts text.
std::string NameOfCut(const Json& json) {
  const std::vector<Json> parts = PartsOf(json.value("pre_tokenizer", Json()));
  if (parts.empty() || TypeOf(parts.back()) != "ByteLevel") {
    RefuseTokenizer("it works neither on bytes (byte-level BPE) nor as SentencePiece's");
  }
  const bool own_regex = parts.back().value("use_regex", true);
  if (parts.back().value("add_prefix_space", false))
    RefuseTokenizer("it adds a space to every text");
  if (parts.size() == 1 && own_regex) return "gpt-2";
  if (parts.size() == 2 && own_regex && TypeOf(parts[0]) == "Digits" &&
      parts[0].value("individual_digits", false)) {
    return "smollm";
  }
  if (parts.size() == 2 && !own_regex && TypeOf(parts[0]) == "Split") {
    const Json pattern = parts[0].value("pattern", Json::object());
    const std::string regex = pattern.value("Regex", std::string());
    for (const Cut& cut : kCuts) {
      if (regex != cut.regex) continue;
      // The one cut has two names: with the first, whole words need no merges.
      const bool whole = json.at("model").value("ignore_merges", false);
      return std::string_view(cut.name) == "llama-bpe" && !whole ? "dbrx" : cut.name;
    }
  }
  RefuseTokenizer("it cuts text in a way that llama.cpp has no name for that is known here");
}

std::string MergeText(const Json& merge) {
  if (merge.is_string()) return merge.get<std::string>();
  if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) {
    RefuseTokenizer("a merge is neither text nor a pair");
  }
  return merge[0].get<std::string>() + " " + merge[1].get<std::string>();
}

struct Tokens {
  std::vector<std::string> texts;
  std::vector<int32_t> kinds;
};

Tokens TokensOf(const Json& vocabulary, const Tokenizer& tokenizer, int64_t vocab) {
  Tokens tokens;
  for (int64_t id = 0; id < vocab; ++id) tokens.texts.push_back(fmt::format("[PAD{}]", id));
  tokens.kinds.assign(static_cast<size_t>(vocab), kUnused);
  const auto set = [&](int64_t id, const std::string& text, int32_t kind) {
    if (id < 0 || id >= vocab) {
      RefuseTokenizer(fmt::format("its token {} is none of the model's {}", id, vocab));
    }
    tokens.texts[static_cast<size_t>(id)] = text;
    tokens.kinds[static_cast<size_t>(id)] = kind;
  };
  for (const auto& [text, id] : vocabulary.items()) {
    if (!id.is_number_integer()) RefuseTokenizer("a token has no number");
    set(id.get<int64_t>(), text, kNormal);
  }
  for (const AddedToken& token : tokenizer.added_tokens()) {
    set(token.id, token.text, token.special ? kControl : kUserDefined);
  }
  return tokens;
}

// Whether a template begins what it writes with the token, as far as its text shows.
bool WritesBos(const std::string& source, const std::string& bos) {
  return source.find("bos_token") != std::string::npos ||
         (!bos.empty() && source.find(bos) != std::string::npos);
}

std::vector<std::string> MergesOf(const Json& json) {
  std::vector<std::string> merges;
  for (const Json& merge : json.at("model").value("merges", Json::array())) {
    merges.push_back(MergeText(merge));
  }
  return merges;
}

void AddByteLevel(const Json& json, const Tokens& tokens, GgufKeys& keys) {
  const std::string cut = NameOfCut(json);
  if (!json.value("normalizer", Json()).is_null() &&
      TypeOf(json["normalizer"]) != "NFC") {  // llama.cpp leaves out Qwen's NFC, too
    RefuseTokenizer("it changes text before it is cut (a normalizer)");
  }
  keys.Set("tokenizer.ggml.model", "gpt2");
  keys.Set("tokenizer.ggml.pre", cut);
  keys.SetTexts("tokenizer.ggml.tokens", tokens.texts);
  keys.SetInts("tokenizer.ggml.token_type", tokens.kinds);
  keys.SetTexts("tokenizer.ggml.merges", MergesOf(json));
  keys.SetBool("tokenizer.ggml.add_space_prefix", false);
}

// Kinds and texts of the tokens of pieces, as llama.cpp has them.
void NameTokens(const Json& json, Tokens& tokens) {
  const Json unknown = json.at("model").value("unk_token", Json());
  std::set<std::string> normalized;
  for (const Json& token : json.value("added_tokens", Json::array())) {
    if (token.value("normalized", false)) normalized.insert(token.value("content", std::string()));
  }
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    std::string& text = tokens.texts[id];
    int32_t& kind = tokens.kinds[id];
    if (unknown == text) kind = kUnknown;
    if (kind == kNormal && text.size() == 6 && text.starts_with("<0x")) kind = kByte;
    // llama.cpp looks for these in the text as it is, before its spaces are replaced.
    constexpr std::string_view kSpace = "\u2581";
    size_t at = normalized.contains(text) ? text.find(kSpace) : text.npos;
    for (; at != text.npos; at = text.find(kSpace)) text.replace(at, kSpace.size(), " ");
  }
}

void AddPieces(const Json& json, Tokens tokens, std::string_view architecture, GgufKeys& keys) {
  NameTokens(json, tokens);
  if (architecture == "gemma4") {
    CheckGemma4Pieces(json);
    // Marks of tool calls and of thinking: llama.cpp reads answers by their text.
    constexpr std::array<std::string_view, 7> kShown = {
        "<|channel>",       "<channel|>",       "<|tool_call>", "<tool_call|>",
        "<|tool_response>", "<tool_response|>", "<|\"|>"};
    for (size_t id = 0; id < tokens.texts.size(); ++id) {
      if (std::ranges::count(kShown, tokens.texts[id]) > 0) tokens.kinds[id] = kUserDefined;
    }
    keys.Set("tokenizer.ggml.model", "gemma4");
    keys.SetTexts("tokenizer.ggml.merges", MergesOf(json));
    keys.SetBool("tokenizer.ggml.add_space_prefix", false);
  } else {
    const SentencePieces pieces =
        ReadSentencePieces(json, static_cast<int64_t>(tokens.texts.size()));
    keys.Set("tokenizer.ggml.model", "llama");
    keys.Set("tokenizer.ggml.pre", "default");
    keys.SetFloats("tokenizer.ggml.scores", pieces.scores);
    keys.SetBool("tokenizer.ggml.add_space_prefix", pieces.space_before);
  }
  keys.SetTexts("tokenizer.ggml.tokens", tokens.texts);
  keys.SetInts("tokenizer.ggml.token_type", tokens.kinds);
}

// Special tokens and the template.
void AddSpecial(const TextFiles& files, const ChatTokenizer& chat, GgufKeys& keys) {
  const auto id = [&](const char* key, std::optional<int32_t> value) {
    if (value) keys.SetInt(key, static_cast<uint32_t>(*value));
  };
  id("tokenizer.ggml.bos_token_id", chat.bos_id());
  id("tokenizer.ggml.eos_token_id", chat.eos_id());
  for (const int32_t stop : chat.stop_ids()) {
    if (stop == chat.eos_id()) continue;
    keys.SetInt("tokenizer.ggml.eot_token_id", static_cast<uint32_t>(stop));
    break;
  }
  for (const auto& [name, key] : {std::pair("unk_token", "tokenizer.ggml.unknown_token_id"),
                                  std::pair("pad_token", "tokenizer.ggml.padding_token_id")}) {
    const std::string token = SpecialTokenText(files, name);
    if (!token.empty()) id(key, chat.tokenizer().TokenId(token));
  }
  const std::string source = FindTemplate(files, "").source;
  const std::string bos = SpecialTokenText(files, "bos_token");
  // A template that writes BOS would have it twice.
  keys.SetBool("tokenizer.ggml.add_bos_token", chat.adds_bos() && !WritesBos(source, bos));
  if (!source.empty()) keys.Set("tokenizer.chat_template", source);
}

void AddAll(const std::filesystem::path& folder, int64_t vocab, std::string_view architecture,
            GgufKeys& keys) {
  const TextFiles files(folder);
  const TokenizerText text = ReadTokenizer(files);
  const Json json = ParseJson(text.json);
  if (!json.is_object()) RefuseTokenizer("tokenizer.json is not a JSON object");
  const Json model = json.value("model", Json::object());
  if (TypeOf(model) != "BPE") {
    RefuseTokenizer("it is neither byte-level BPE nor a SentencePiece model of BPE");
  }
  const bool pieces = IsSentencePiece(json);
  const ChatTokenizer chat = ChatTokenizer::Open(folder);
  Tokens tokens = TokensOf(model.value("vocab", Json::object()), chat.tokenizer(), vocab);
  if (pieces) {
    AddPieces(json, std::move(tokens), architecture, keys);
  } else {
    AddByteLevel(json, tokens, keys);
  }
  AddSpecial(files, chat, keys);
}

}  // namespace

void RefuseTokenizer(const std::string& what) {
  throw UserError("the tokenizer cannot be written as GGUF: " + what, "bad_tokenizer",
                  "export a merged model and convert it with llama.cpp's convert_hf_to_gguf.py");
}

void AddTokenizer(const std::filesystem::path& folder, int64_t vocab, std::string_view architecture,
                  GgufKeys& keys) {
  try {
    AddAll(folder, vocab, architecture, keys);
  } catch (const nlohmann::json::exception& error) {
    RefuseTokenizer(fmt::format("tokenizer.json: {}", error.what()));
  }
}

}  // namespace sft::engine
