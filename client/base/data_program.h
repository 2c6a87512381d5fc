#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"

namespace sft::client {

// sft-data, the program beside sftctl that reads rows with a model's tokenizer: the code of
// `sft-rank prepare`, which is not in this program.

// How it ended.
struct DataProgramEnd {
  int code = 0;      // kDataRefused: the data, or the job with them
  std::string said;  // what it printed, errors included, where that was to be kept
};
inline constexpr int kDataRefused = 64;  // docs/verdicts.md: the user's

// Runs it to its end: the one beside this program, else the one that PATH finds. `keeps`: what it
// prints is returned, and not shown.
absl::StatusOr<DataProgramEnd> RunDataProgram(std::vector<std::string> arguments, bool keeps);

// Whether a folder of this machine has a model's tokenizer.
bool HasTokenizer(const std::string& folder);

}  // namespace sft::client
