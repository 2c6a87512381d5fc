#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/spec/job_spec.h"

namespace sft::preview {

// A parsed command line of sft-data.
struct Options {
  bool help = false, version = false;
  std::string file;
  std::string name;  // what the file is called; empty: its path
  const std::string& shown() const { return name.empty() ? file : name; }
  std::string model;     // a folder with a tokenizer
  std::string gpu_type;  // an epoch's time is told on one of these; empty: not told
  std::string chat_template;
  std::string template_date;                    // data.template_date; empty: today's
  std::vector<std::string> template_arguments;  // data.template_arguments
  std::vector<std::string> columns, roles;      // data.columns, data.roles
  int64_t sequence_length = 2048;
  int64_t batch = 8;
  bool loss_on_all = false;  // data.loss_on
  std::string loss = "sft";  // training.loss
  bool prefers() const { return loss != "sft"; }
  bool pairs() const { return prefers() && loss != "kto"; }  // a row is two documents
  int64_t first = 0;                                         // rows that are read; 0: all
  std::string alpaca_prompt, text_documents;  // as the keys of data; empty: their defaults
  bool color = false;
  bool json = false;
  // "KEY=VALUE", of the job file: how its rows are chosen and cut. Where there are some it is also
  // said what such a job would train on.
  std::vector<std::string> settings;
  spec::JobSpec job;  // as all of these options say
};

std::string HelpText();

// `args` without the program's name. InvalidArgument names the flag and what would be right.
absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& args);

// What a data set is to a model.
struct Found {
  std::string text;  // words, or a JSON object
  // The job would be refused; without settings, one that leaves data.on_bad_rows and
  // data.on_long_rows at "error".
  bool refused = false;
};

// Reads the rows as a job would, with the code of `sft-rank prepare`, and says what it found.
// Throws engine errors.
Found Preview(const Options& options);

}  // namespace sft::preview
