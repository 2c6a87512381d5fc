#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/data/prompt_row.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/generate/batch_generator.h"
#include "worker/engine/generate/generator.h"
#include "worker/rank/cache_room.h"
#include "worker/rank/device.h"

namespace sft::rank {

// Who answers prompts, and how.
struct AnswerOptions {
  std::string model, adapter;  // folders; no adapter: the base alone
  std::string chat_template;   // in place of the model's own; empty: that
  engine::TemplateSettings settings;
  int64_t max_new_tokens = 256;
  engine::SamplingOptions sampling;  // its seed is the run's: each answer has one made of it
  engine::BeamOptions beams;         // of a search; its `answers` are the samples
  std::vector<std::string> stop;
  int most_requests = 32;       // answered at once
  int samples = 1;              // answers to each prompt
  bool nf4 = false;             // the base's linear layers are held in NF4
  double memory_budget_gb = 0;  // of the GPU; 0: all of it
  int processes = 1;            // that share this node's memory
};

// Room for keys and values beside the loaded weights: on a GPU what is free but a tenth, on a CPU a
// quarter of the process's share of the node's memory.
CacheRoom CacheRoomOf(const AnswerOptions& options, const engine::Generator& generator,
                      const Device& device);

// The model that answers: `adapter` in place of the options' own, or empty for the base alone.
engine::GeneratorOptions ModelOf(const AnswerOptions& options, const std::string& adapter,
                                 const Device& device);

// Answers that are worked on at once, as BatchOptions counts them.
int64_t RowsAtOnce(const AnswerOptions& options, int64_t requests);

// Throws UserError for a number that is out of its range: before anything is loaded.
void CheckOptions(const AnswerOptions& options);

// Throws UserError where a prompt and its answer have more tokens than the model was made for.
// `positions`: max_position_embeddings of its config.json, or what its family calls it; 0: not
// said.
void CheckPositions(int64_t prompt_tokens, int64_t new_tokens, int64_t positions);

// What one prompt got.
struct RowAnswer {
  std::string text;
  std::string thoughts;  // of a model that names its channels: what is not the answer
  size_t prompt_tokens = 0, tokens = 0;
  std::string finish_reason;  // "stop": ended by the model or a stop text; "length"; "error"
  std::string error;          // with "error"
};

// Rows of a file of prompts; `file` is its name for messages.
struct Prompts {
  std::string file;
  std::vector<data::PromptRow> rows;
};

// Answers to prompts, numbered from 0: answer i is to row i / samples. An answer depends on its
// number, not on who makes it and beside which others. Not thread-safe.
class RowAnswerer {
 public:
  // Encodes and checks the prompts of the answers [first, last), then loads the model. Borrows
  // `prompts`. Throws UserError, which names the file and line of a prompt that cannot be answered.
  RowAnswerer(const AnswerOptions& options, const Prompts& prompts, int64_t first, int64_t last,
              const Device& device);

  // One forward; gives the answers that are next in order. False when all were given.
  using Take = std::function<void(int64_t number, const RowAnswer& answer)>;
  bool Step(const Take& take);

  // Tokens of all answers so far, whose turn has not come yet included.
  int64_t tokens() const { return tokens_; }

 private:
  engine::GenerationRequest RequestFor(const AnswerOptions& options, const data::PromptRow& row,
                                       int64_t number) const;
  RowAnswer AnswerOf(const engine::GenerationAnswer& made) const;

  int64_t next_, first_, last_;
  engine::ChatTokenizer tokenizer_;
  std::vector<int64_t> numbers_;       // by the batch's number: of the request's first answer
  std::vector<size_t> prompt_tokens_;  // by the batch's number
  std::optional<engine::Generator> generator_;
  std::unique_ptr<engine::BatchGenerator> batch_;
  std::map<int64_t, RowAnswer> early_;  // that wait for those before them
  int64_t tokens_ = 0;
};

// "stop", "length" or "error".
std::string FinishReason(const engine::GenerationAnswer& made);

// The tokenizer whose template is asked: that of the adapter, if it brings one.
engine::ChatTokenizer OpenTokenizer(const AnswerOptions& options);

// The answer's line in a file: the row's own members and what was answered. Without a newline.
std::string LineOf(const Prompts& prompts, int samples, int64_t number, const RowAnswer& answer);

// What decides the answers and how they are divided, for AnswerPart: two runs with the same text
// give the same file. An adapter counts by its bytes, a base by its config.json and what the
// headers of its weights say. Throws UserError where they cannot be read.
std::string RunOf(const AnswerOptions& options, const Prompts& prompts, int ranks);

}  // namespace sft::rank
