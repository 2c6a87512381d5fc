#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"

namespace sft::rank {

enum class Command { kHelp, kVersion, kTrain, kPrepare, kGenerate, kExport, kLogits, kMeet };

// A parsed command line; members of other commands keep their defaults.
struct Arguments {
  Command command = Command::kHelp;
  std::string launch;  // train, prepare, export, generate for a job: the launch file
  // train: global rank; -1: the variable RANK says it. generate: which of `ranks`; -1: the first.
  int rank = -1;
  std::string profile;  // train: file for the trace of a step, gzip; empty: none
  // generate, logits:
  std::string model;
  std::string adapter;         // empty: the base model alone
  std::string device = "cpu";  // or "cuda:N"
  // generate:
  std::string prompt;
  std::string prompts;  // file with one prompt a line
  int max_new_tokens = 256;
  bool json = false;
  int most_requests = 32;  // answered at once
  int ranks = 1;           // processes that share the prompts; `rank` is this one
  double temperature = 0.0, top_p = 1.0, min_p = 0.0, repetition_penalty = 1.0;
  int top_k = 0;
  int seed = 0;
  std::string stop;  // text that ends an answer; empty: none
  // meet: where the ranks meet; `rank` and `ranks` say which of how many this is.
  std::string host = "127.0.0.1";
  int port = 0;
  int timeout_seconds = 15;  // for the meeting, and for each step after it
  // logits, safetensors file:
  std::string tokens;
  // generate: file for the answers, empty: standard output; logits: safetensors file.
  std::string out;
};

// The text of `sft-rank --help`.
std::string HelpText();

// `args` without the program's name. InvalidArgument names the flag and what would be right.
absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& args);

}  // namespace sft::rank
