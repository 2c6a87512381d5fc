#pragma once

#include <filesystem>
#include <string>

#include "worker/engine/data/model_text.h"

namespace sft::engine {

// A tokenizer.json and where it is from.
struct TokenizerText {
  std::string json;
  std::string origin;  // the file that messages name
  // What it was made of, in a sentence; empty: the folder has it.
  std::string note;
};

// The tokenizer.json of a model directory. Where there is none it is made of tekken.json,
// tokenizer.model (SentencePiece or tiktoken), tiktoken.model, or vocab.json with merges.txt, as
// transformers makes it; the same files make the same text. Throws UserError when there is nothing
// to make it of.
TokenizerText ReadTokenizer(const TextFiles& files);

// A Jinja template and where it is from.
struct TemplateText {
  std::string source;  // empty: there is none
  std::string origin;
};

// The chat template of a model directory: chat_template.jinja, chat_template.json or
// tokenizer_config.json's chat_template. `wanted`, a job's data.chat_template: the text of one that
// takes its place, or the name of one of the model's named templates; empty: the model's own, of
// several the one named "default". Throws UserError when there is none of that name.
TemplateText FindTemplate(const TextFiles& files, std::string_view wanted);

}  // namespace sft::engine
