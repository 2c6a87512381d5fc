#include "worker/engine/data/chat_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/base/status.h"
#include "common/io/sha256.h"
#include "common/spec/template_settings.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/model_text.h"
#include "worker/engine/data/tokenizer_files.h"

namespace sft::engine {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::vector<int32_t> IdList(const Json& value) {
  std::vector<int32_t> ids;
  if (value.is_number_integer()) ids.push_back(value.get<int32_t>());
  if (value.is_array()) {
    for (const Json& id : value) {
      if (id.is_number_integer()) ids.push_back(id.get<int32_t>());
    }
  }
  return ids;
}

// By its text in the tokenizer's files; else the first id that generation_config.json or
// config.json gives under `id_key`.
std::optional<int32_t> SpecialTokenId(const Tokenizer& tokenizer, const TextFiles& files,
                                      const std::string& text, const char* id_key) {
  if (!text.empty()) {
    const std::optional<int32_t> id = tokenizer.TokenId(text);
    if (!id) {
      throw UserError(
          fmt::format("the special token {} of tokenizer_config.json is not in the tokenizer; copy "
                      "all files from "
                      "the same model",
                      text));
    }
    return id;
  }
  for (const Json* file : {&files.generation_config, &files.config}) {
    const std::vector<int32_t> ids = IdList(Member(*file, id_key));
    if (!ids.empty()) return ids.front();
  }
  return std::nullopt;
}

// BOS or EOS as the files give it, or as the class has it if the vocabulary does too.
std::string EndText(const Tokenizer& tokenizer, const TextFiles& files, const char* key) {
  std::string text = SpecialTokenText(files, key);
  if (!text.empty()) return text;
  text = SpecialTokenOfClass(files, key);
  return tokenizer.TokenId(text) ? text : "";
}

// What DialoGPT's tokenizer has, and what GPT-2 models of conversations are trained on: turns
// joined by the end token, without roles.
constexpr std::string_view kJoinedTurns =
    "{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}";

// Published GPT-2 models come without a template, and their converted copies lose DialoGPT's.
bool JoinsTurns(const TextFiles& files) {
  const Json& type = Member(files.config, "model_type");
  return type.is_string() && type.get<std::string>() == "gpt2";
}

// Parts are hashed with their lengths, so that no two lists of parts hash alike.
std::string DigestOf(const std::vector<std::string_view>& parts) {
  io::Sha256 hash;
  for (const std::string_view part : parts) {
    hash.Update(fmt::format("{}:", part.size()));
    hash.Update(part);
  }
  return hash.FinishHex();
}

// A word that is in none of the contents, so that it can be found again in the rendered text.
std::string UnusedWord(std::span<const ChatMessage> messages) {
  std::string word = "Xplaceholder";
  while (std::ranges::any_of(messages, [&word](const ChatMessage& message) {
    return message.content.find(word) != std::string::npos;
  })) {
    word += 'x';
  }
  return word;
}

}  // namespace

TemplateSettings TemplateSettings::Of(const std::string& day,
                                      const std::vector<std::string>& arguments) {
  if (!day.empty() && !spec::IsDay(day)) {
    throw UserError(
        fmt::format("data.template_date: \"{}\" is no day written as \"2026-11-26\"", day));
  }
  const auto parsed = spec::TemplateArguments(arguments);
  if (!parsed.ok()) {
    throw UserError("data.template_arguments: " + std::string(Message(parsed.status())));
  }
  return {.day = day, .arguments = parsed->empty() ? "" : DumpJson(*parsed)};
}

TemplateSettings TemplateSettings::OfJob(const spec::JobSpec& spec) {
  const bool former = spec.data.template_date.empty() && !spec.serves();
  return Of(former ? spec::kFormerTemplateDate : spec.data.template_date,
            spec.data.template_arguments);
}

ChatTokenizer ChatTokenizer::Open(const fs::path& model_dir, std::string_view wanted_template,
                                  const TemplateSettings& settings) {
  if (!fs::is_directory(model_dir)) {
    throw UserError(
        fmt::format("{} is not a directory; job.model must name a model directory in "
                    "the Hugging Face layout",
                    model_dir.string()));
  }
  const TextFiles files(model_dir);
  const TokenizerText text = ReadTokenizer(files);
  ChatTokenizer result(Tokenizer::FromJson(text.json, text.origin));
  result.model_dir_ = model_dir;
  result.note_ = text.note;
  result.channels_ = AnswerChannels::Of(result.tokenizer_);

  TemplateVariables variables;
  const Tokenizer& tokenizer = result.tokenizer_;
  variables.bos_token = EndText(tokenizer, files, "bos_token");
  variables.eos_token = EndText(tokenizer, files, "eos_token");
  variables.unk_token = SpecialTokenText(files, "unk_token");
  variables.pad_token = SpecialTokenText(files, "pad_token");
  variables.date = settings.day;
  variables.arguments = settings.arguments;
  result.settings_ = settings;
  result.bos_id_ = SpecialTokenId(tokenizer, files, variables.bos_token, "bos_token_id");
  result.eos_id_ = SpecialTokenId(tokenizer, files, variables.eos_token, "eos_token_id");
  if (result.eos_id_) result.stop_ids_.push_back(*result.eos_id_);
  for (const int32_t id : IdList(Member(files.generation_config, "eos_token_id"))) {
    if (std::ranges::find(result.stop_ids_, id) == result.stop_ids_.end()) {
      result.stop_ids_.push_back(id);
    }
  }
  // Llama's and Mistral's tokenizer classes build their post-processor from this key.
  const Json& add_bos = Member(files.tokenizer_config, "add_bos_token");
  result.adds_bos_ =
      result.bos_id_ &&
      (add_bos.is_boolean()
           ? add_bos.get<bool>()
           : std::ranges::find(tokenizer.prefix(), *result.bos_id_) != tokenizer.prefix().end());

  TemplateText chat_template = FindTemplate(files, wanted_template);
  if (chat_template.source.empty() && JoinsTurns(files) && !variables.eos_token.empty()) {
    chat_template = {std::string(kJoinedTurns), "turns joined by the end token"};
    result.note_ += fmt::format(
        "{}the model has no chat template: turns of a conversation are joined by {}, without roles",
        result.note_.empty() ? "" : "\n", variables.eos_token);
  }
  if (!chat_template.source.empty()) {
    result.template_ = ChatTemplate::Compile(chat_template.source, chat_template.origin, variables);
    result.LookAtTemplate();
  }
  // As earlier versions had it where the template prints no day and is given nothing.
  std::string_view day = spec::kFormerTemplateDate;
  if (result.asks_for_day_) day = settings.day;
  const std::string eos = fmt::format("{}", result.eos_id_.value_or(-1));
  std::vector<std::string_view> parts = {text.json,
                                         chat_template.source,
                                         variables.bos_token,
                                         variables.eos_token,
                                         variables.unk_token,
                                         variables.pad_token,
                                         day,
                                         result.adds_bos_ ? "bos" : "",
                                         eos};
  if (!settings.arguments.empty()) parts.push_back(settings.arguments);
  result.digest_ = DigestOf(parts);
  return result;
}

void ChatTokenizer::LookAtTemplate() {
  const std::string& source = template_->source();
  for (const AddedToken& token : tokenizer_.added_tokens()) {
    const bool blank = token.text.find_first_not_of(" \t\r\n") == std::string::npos;
    if (!token.special && !blank && source.find(token.text) != std::string::npos) {
      template_controls_.push_back(token.id);
    }
  }
  asks_for_day_ = spec::AsksForDay(source);
  if (settings_.arguments.empty()) return;
  const Json arguments = ParseOrderedJson(settings_.arguments);
  for (const auto& [name, value] : arguments.items()) {
    if (source.find(name) == std::string::npos) unused_arguments_.push_back(name);
  }
}

const AddedToken* ChatTokenizer::FindControlToken(std::string_view text, bool author_text) const {
  const std::vector<AddedToken>& added = tokenizer_.added_tokens();
  for (const int32_t id : tokenizer_.AddedTokensIn(text)) {
    const auto token = std::ranges::lower_bound(added, id, {}, &AddedToken::id);
    if (token == added.end() || token->id != id) continue;
    if (token->special || (!author_text && std::ranges::binary_search(template_controls_, id))) {
      return &*token;
    }
  }
  return nullptr;
}

std::vector<int32_t> ChatTokenizer::EncodePrompt(std::span<const ChatMessage> messages) const {
  if (!template_) {
    throw UserError(fmt::format("{} has no chat template; give one with data.chat_template",
                                model_dir_.string()));
  }
  // Content with a control token is rendered as a word of its own and encoded apart, as plain text.
  const std::string word = UnusedWord(messages);
  std::vector<std::string_view> plain;
  Json list = Json::array();
  for (const ChatMessage& message : messages) {
    std::string content = message.content;
    if (FindControlToken(content, /*author_text=*/false) != nullptr) {
      content = fmt::format("{}{}z", word, plain.size());
      plain.push_back(message.content);
    }
    list.push_back({{"role", message.role}, {"content", content}});
  }
  const std::string rendered =
      template_->Render({.messages_json = DumpJson(list), .add_generation_prompt = true}).text;

  std::vector<int32_t> ids;
  const auto append = [&ids](const Encoding& piece) {
    ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
  };
  size_t done = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const std::string mark = fmt::format("{}{}z", word, i);
    const size_t at = rendered.find(mark, done);
    if (at == std::string::npos) {
      throw UserError(
          "the chat template drops or moves a message that holds a control token; "
          "remove the control token from the prompt");
    }
    append(tokenizer_.Encode(std::string_view(rendered).substr(done, at - done)));
    append(tokenizer_.EncodeAsPlainText(plain[i]));
    done = at + mark.size();
  }
  append(tokenizer_.Encode(std::string_view(rendered).substr(done)));
  return ids;
}

std::string ChatTokenizer::DecodeText(std::span<const int32_t> ids) const {
  return tokenizer_.Decode(ids, /*skip_special=*/true);
}

std::string ChatTokenizer::DecodeAnswer(std::span<const int32_t> ids) const {
  return channels_ ? DecodeText(channels_->Split(ids, tokenizer_).answer) : DecodeText(ids);
}

std::string ChatTokenizer::DecodeThoughts(std::span<const int32_t> ids) const {
  return channels_ ? DecodeText(channels_->Split(ids, tokenizer_).thoughts) : "";
}

}  // namespace sft::engine
