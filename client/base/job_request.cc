#include "client/base/job_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "client/output/text.h"
#include "common/base/env.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/io/file.h"
#include "common/spec/fields.h"

namespace sft::client {
namespace {

constexpr int64_t kMaxDeepspeedFile = 1 << 20;

// The variables that name a key with their values; those that look so, but name none, without: the
// server warns of them, and what they hold may be a secret.
absl::Status AddVariables(std::vector<v1::Override>& overrides) {
  const std::vector<std::string> known = spec::AllEnvNames();
  for (const std::string& name : known) {
    const std::string value = GetEnv(name).value_or("");
    if (value.empty()) continue;
    if (!IsUtf8(value)) {
      return InvalidArgument(fmt::format("the environment variable {} is not UTF-8", name));
    }
    overrides.push_back(MakeOverride(v1::Override::ENVIRONMENT, name, value, name));
  }
  std::vector<std::string> others;
  for (const spec::ForeignVariable& foreign : spec::ForeignVariables()) {
    others.emplace_back(foreign.name);
  }
  for (const std::string_view prefix : spec::kVariablePrefixes) {
    for (std::string& name : EnvNamesWith(prefix)) {
      const bool is_foreign = std::find(others.begin(), others.end(), name) != others.end();
      if (!is_foreign) others.push_back(std::move(name));
    }
  }
  for (const std::string& name : others) {
    const bool is_known = std::find(known.begin(), known.end(), name) != known.end();
    if (is_known || !IsUtf8(name) || GetEnv(name).value_or("").empty()) continue;
    overrides.push_back(MakeOverride(v1::Override::ENVIRONMENT, name, "", name));
  }
  return absl::OkStatus();
}

}  // namespace

v1::Override MakeOverride(v1::Override::Kind kind, std::string key, std::string value,
                          std::string origin) {
  v1::Override made;
  made.set_kind(kind);
  made.set_key(std::move(key));
  made.set_value(std::move(value));
  made.set_origin(std::move(origin));
  return made;
}

absl::StatusOr<v1::Override> ParseSet(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    return InvalidArgument(fmt::format(
        "--set {}: must be key=value, for example --set hyperparameters.n_epochs=2", assignment));
  }
  return MakeOverride(v1::Override::SET, assignment.substr(0, equals),
                      assignment.substr(equals + 1), "--set");
}

absl::StatusOr<std::vector<v1::Override>> CollectOverrides(const SubmitFlags& flags) {
  std::vector<v1::Override> overrides;
  SFT_RETURN_IF_ERROR(AddVariables(overrides));
  using Text = std::optional<std::string>;
  struct Flag {
    const char* key;
    const Text& value;
    const char* origin;
  };
  for (const Flag& flag : {Flag{"job.kind", flags.type, "--type"},
                           {"job.name", flags.name, "--name"},
                           {"job.group", flags.group, "--group"},
                           {"job.data", flags.dataset, "--dataset"},
                           {"data.val", flags.val, "--val"},
                           {"job.model", flags.model, "--model"},
                           {"job.adapter", flags.adapter, "--adapter"},
                           {"scheduling.priority", flags.priority, "--priority"},
                           {"scheduling.after", flags.after, "--after"},
                           {"scheduling.time_limit", flags.time_limit, "--time-limit"}}) {
    if (!flag.value) continue;
    if (flag.value->empty()) {
      return InvalidArgument(fmt::format(
          "{} is empty; leave it out to keep what the file says of {}", flag.origin, flag.key));
    }
    overrides.push_back(MakeOverride(v1::Override::FLAG, flag.key, *flag.value, flag.origin));
  }
  if (!flags.deepspeed.empty()) {
    absl::StatusOr<std::string> text = io::ReadFile(flags.deepspeed, kMaxDeepspeedFile);
    if (!text.ok()) return InvalidArgument(fmt::format("--deepspeed: {}", Message(text.status())));
    if (text->empty()) return InvalidArgument(fmt::format("{} is empty", flags.deepspeed));
    overrides.push_back(
        MakeOverride(v1::Override::FLAG, "train.deepspeed_config", *text, "--deepspeed"));
  }
  if (flags.hold) {
    overrides.push_back(MakeOverride(v1::Override::FLAG, "scheduling.hold", "true", "--hold"));
  }
  if (flags.examples > 0) {
    overrides.push_back(MakeOverride(v1::Override::FLAG, "data.max_examples",
                                     std::to_string(flags.examples), "--examples"));
  }
  for (const std::string& assignment : flags.set) {
    SFT_ASSIGN_OR_RETURN(v1::Override override, ParseSet(assignment));
    overrides.push_back(std::move(override));
  }
  return overrides;
}

std::string LocalPath(const v1::NeededFile& needed, const std::string& job_file) {
  const std::filesystem::path path(needed.path());
  if (path.is_absolute() || needed.from_override()) return path.string();
  return (std::filesystem::path(job_file).parent_path() / path).string();
}

v1::Problem ProblemOf(const rpc::FieldViolation& violation) {
  constexpr std::string_view kLine = "line ";
  v1::Problem problem;
  problem.set_key(violation.field);
  problem.set_message(violation.description);
  const std::string_view text = violation.description;
  if (!text.starts_with(kLine)) return problem;
  int line = 0;
  const auto [end, error] =
      std::from_chars(text.data() + kLine.size(), text.data() + text.size(), line);
  const std::string_view rest(end, text.data() + text.size() - end);
  if (error != std::errc() || !rest.starts_with(": ")) return problem;
  problem.set_line(line);
  problem.set_message(std::string(rest.substr(2)));
  return problem;
}

std::string ProblemLine(const v1::Problem& problem, const std::string& file) {
  std::string where = file;
  if (problem.line() > 0) where += fmt::format(":{}", problem.line());
  if (problem.key().empty()) return Lines(fmt::format("{}: {}", where, problem.message()));
  return Lines(fmt::format("{}: {}: {}", where, problem.key(), problem.message()));
}

}  // namespace sft::client
