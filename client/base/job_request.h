#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/base/connection.h"
#include "client/base/upload.h"
#include "sft/v1/job_service.pb.h"

namespace sft::client {

// What `submit` was given on its command line.
struct SubmitFlags {
  std::string file;
  std::optional<std::string> type;
  std::optional<std::string> dataset;
  std::optional<std::string> val;
  std::optional<std::string> model;
  std::optional<std::string> adapter;
  std::optional<std::string> name;
  std::optional<std::string> group;
  std::optional<std::string> priority;
  std::optional<std::string> after;  // ids, separated by commas
  std::optional<std::string> time_limit;
  bool hold = false;
  std::string deepspeed;  // path of a DeepSpeed JSON
  long examples = 0;
  std::vector<std::string> set;  // "key=value", as typed
};

// Changes to the job file in the order in which they win: environment, then flags, then --set. The
// DeepSpeed JSON goes as its text. INVALID_ARGUMENT where that cannot be read, for a flag without a
// value and for what is not UTF-8.
absl::StatusOr<std::vector<v1::Override>> CollectOverrides(const SubmitFlags& flags);

v1::Override MakeOverride(v1::Override::Kind kind, std::string key, std::string value,
                          std::string origin);
// Of "key=value" behind --set. INVALID_ARGUMENT.
absl::StatusOr<v1::Override> ParseSet(const std::string& assignment);

// The path on this machine of a file that the job names: relative to the job file, or to the
// working directory when an override named it.
std::string LocalPath(const v1::NeededFile& needed, const std::string& job_file);

// A bad key that a refused call names; its description begins with "line 12: " where it has a line.
v1::Problem ProblemOf(const rpc::FieldViolation& violation);

// "job.toml:12: hyperparameters.n_epochs: message"
std::string ProblemLine(const v1::Problem& problem, const std::string& file);

}  // namespace sft::client
