#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/job_spec.h"
#include "worker/engine/data/channels.h"
#include "worker/engine/data/chat_template.h"
#include "worker/engine/data/tokenizer.h"

namespace sft::engine {

// One message of a prompt.
struct ChatMessage {
  std::string role;  // "system", "user", "assistant", "tool"
  std::string content;
};

// What the chat template is given beside the conversation.
struct TemplateSettings {
  std::string day;        // "2026-11-26"; empty: that of each rendering, in UTC
  std::string arguments;  // a JSON object of variables, or empty

  // Of data.template_date and data.template_arguments. Throws UserError for what is neither.
  static TemplateSettings Of(const std::string& day, const std::vector<std::string>& arguments);
  // A job without a day is of an earlier version, and keeps the one that it had then; but who
  // serves asks with that of each question.
  static TemplateSettings OfJob(const spec::JobSpec& spec);
};

// The text side of a model directory: its tokenizer and chat template (tokenizer_files.h) and the
// special tokens (tokenizer_config.json, special_tokens_map.json, generation_config.json,
// config.json, or the tokenizer's class). Immutable; may be used from any thread at the same time.
class ChatTokenizer {
 public:
  // `wanted_template`: as FindTemplate has it; empty: the model's own.
  // Throws UserError when there is no tokenizer or a file cannot be read as what it should be.
  // A model without a template opens; only what needs one throws. GPT-2 models need none: the turns
  // of their conversations are joined by the end token, as DialoGPT's are.
  static ChatTokenizer Open(const std::filesystem::path& model_dir,
                            std::string_view wanted_template = {},
                            const TemplateSettings& settings = {});
  // With the job's template and what the job gives it.
  static ChatTokenizer OpenForJob(const std::filesystem::path& model_dir,
                                  const spec::JobSpec& spec) {
    return Open(model_dir, spec.data.chat_template, TemplateSettings::OfJob(spec));
  }

  const Tokenizer& tokenizer() const { return tokenizer_; }
  // Null: the model has no chat template.
  const ChatTemplate* chat_template() const { return template_ ? &*template_ : nullptr; }
  const std::filesystem::path& model_dir() const { return model_dir_; }
  const TemplateSettings& settings() const { return settings_; }
  // The template prints the day it is.
  bool asks_for_day() const { return asks_for_day_; }
  // Names of the settings' arguments that the template does not speak of.
  const std::vector<std::string>& unused_arguments() const { return unused_arguments_; }

  // Which files the tokenizer was made of, if it is not the model's tokenizer.json, and what stands
  // in for a chat template; a line each.
  const std::string& note() const { return note_; }

  std::optional<int32_t> bos_id() const { return bos_id_; }
  std::optional<int32_t> eos_id() const { return eos_id_; }
  // Generation ends at any of these: EOS and every eos_token_id of generation_config.json.
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }
  // True if plain text (rows of `text` and `prompt`) starts with BOS, as with the model's own
  // tokenizer.
  bool adds_bos() const { return adds_bos_; }

  // The tokens that make the model answer: the conversation and the generation prompt. Control
  // tokens inside a message's content are encoded as plain text, never as control tokens.
  // Throws UserError without a template or when it refuses the conversation.
  std::vector<int32_t> EncodePrompt(std::span<const ChatMessage> messages) const;

  // Text without special tokens.
  std::string DecodeText(std::span<const int32_t> ids) const;
  // The same of tokens that a model answered; of one that names its channels, the answer alone.
  std::string DecodeAnswer(std::span<const int32_t> ids) const;
  // What such a model wrote in other channels; empty for all others.
  std::string DecodeThoughts(std::span<const int32_t> ids) const;

  // Lower-case hex SHA-256 over all that decides tokens: equal for equal tokenisation.
  const std::string& digest() const { return digest_; }

  // The token that content must not contain: special, or an added token that the template itself
  // writes ("<think>"). Null for ordinary text. `author_text`: written by whoever made the row's
  // answer or system prompt; only special tokens are refused there.
  const AddedToken* FindControlToken(std::string_view text, bool author_text) const;

 private:
  explicit ChatTokenizer(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}
  void LookAtTemplate();

  std::filesystem::path model_dir_;
  std::string note_;
  TemplateSettings settings_;
  bool asks_for_day_ = false;
  std::vector<std::string> unused_arguments_;
  Tokenizer tokenizer_;
  std::optional<ChatTemplate> template_;
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
  std::vector<int32_t> stop_ids_;
  std::optional<AnswerChannels> channels_;
  std::vector<int32_t> template_controls_;  // ids of added tokens in the template's text, sorted
  bool adds_bos_ = false;
  std::string digest_;
};

}  // namespace sft::engine
