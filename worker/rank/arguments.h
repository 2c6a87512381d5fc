#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"

namespace sft::rank {

enum class Command { kHelp, kVersion, kTrain, kPrepare, kGenerate, kLogits };

// A parsed command line; members of other commands keep their defaults.
struct Arguments {
  Command command = Command::kHelp;
  std::string launch;   // train, prepare: the launch file
  int rank = -1;        // train: global rank; -1: the variable RANK says it
  std::string profile;  // train: file for the trace of a step; empty: none
  // generate, logits:
  std::string model;
  std::string adapter;         // empty: the base model alone
  std::string device = "cpu";  // or "cuda:N"
  // generate:
  std::string prompt;
  std::string prompts;  // file with one prompt a line
  int max_new_tokens = 256;
  bool json = false;
  // logits, safetensors files:
  std::string tokens;
  std::string out;
};

// The text of `sft-rank --help`.
std::string HelpText();

// `args` without the program's name. InvalidArgument names the flag and what would be right.
absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& args);

}  // namespace sft::rank
