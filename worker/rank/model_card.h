#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/spec/job_spec.h"

// Model cards: the README.md beside a result, whose front matter hubs read.

namespace sft::rank {

// "org/name" of "org/name@commit"; empty for a folder, and for a name that nodes alone know.
std::string HubIdOf(const std::string& base);
// The card in a folder; empty: there is none that can be read, or it is a link that leads out of
// the folder and of the hub cache that the folder is of.
std::string ReadCard(const std::string& folder);

// A file of training rows as a card tells of it.
struct CardData {
  std::string name;
  std::string sha256;  // empty: not known
};

// Largest differences of logits that the job found, as parts of the largest.
struct CardChecks {
  double packing = 0;    // of a packed document, from itself alone
  double delivered = 0;  // of the written files, read back, from the trained model
};

// What a card says of a training.
struct TrainingFacts {
  std::string job;
  std::string base;       // "org/name@commit" or a folder of the node
  std::string base_card;  // README.md of the base; empty: there is none
  std::string device;     // of a rank
  int ranks = 1;
  double seconds = 0;
  std::string engine;  // version and build
  std::string template_digest;
  std::vector<CardData> data;
  int64_t rows = 0, skipped = 0, tokens = 0, loss_tokens = 0;
  int64_t first_step = 1;  // of this process: those before it are of an earlier one
  std::vector<std::pair<int64_t, double>> losses;       // by step
  std::vector<std::pair<int64_t, double>> validations;  // by step
  std::optional<CardChecks> checks;
};

// The card of an adapter or of a full model.
std::string TrainingCard(const TrainingFacts& facts, const spec::JobSpec& spec);

// What a card says of an export.
struct ExportFacts {
  std::string base;
  std::string base_card;
  std::string adapter_card;       // README.md of the adapter, whose account of the training is kept
  nlohmann::ordered_json result;  // export.json
  std::string gguf;               // name of the file; empty: a merged model, or an adapter
  int vllm_rank = 0;              // of an adapter for vLLM; 0: none
};
std::string ExportCard(const ExportFacts& facts);

}  // namespace sft::rank
