#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace sft::spec {

// A program of the user's that grades answers: a table [[evaluate.grader]] with type = "command".
struct CommandGrader {
  std::string name;                  // of its score, among those of the metrics
  std::vector<std::string> command;  // the program, by its absolute path, and its arguments
  double low = 0, high = 1;          // the scores that it gives: low is 0 of 100, high is 100
  int timeout_seconds = 10;          // for one answer
  int64_t memory_mb = 1024;
};

// Parses an item of evaluate.grader, a JSON object. InvalidArgument says what would be right.
absl::StatusOr<CommandGrader> ParseGrader(std::string_view json);

}  // namespace sft::spec
