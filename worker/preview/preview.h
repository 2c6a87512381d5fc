#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace sft::preview {

// A parsed command line of sft-data.
struct Options {
  bool help = false, version = false;
  std::string file;
  std::string model;  // a folder with a tokenizer
  std::string chat_template;
  std::vector<std::string> columns, roles;  // data.columns, data.roles
  int64_t sequence_length = 2048;
  int64_t batch = 8;
  bool color = false;
  bool json = false;
};

std::string HelpText();

// `args` without the program's name. InvalidArgument names the flag and what would be right.
absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& args);

// Reads the rows as a job would, with the code of `sft-rank prepare`, and says what it found, in
// words or as a JSON object. Throws engine errors.
std::string Preview(const Options& options);

}  // namespace sft::preview
