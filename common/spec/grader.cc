#include "common/spec/grader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/json.h"
#include "common/base/plain_text.h"
#include "common/grade/match.h"
#include "common/grade/metric.h"

namespace sft::spec {
namespace {

using GraderJson = nlohmann::json;

constexpr size_t kLongestName = 40, kMostArguments = 64, kMostShown = 80;
constexpr size_t kLongestPrompt = 64 << 10, kLongestText = 1000;
constexpr int kLongestSeconds = 600, kMostRetries = 20, kMostTokens = 32'768;
constexpr int64_t kLeastMegabytes = 16, kMostMegabytes = 1 << 20, kMostCalls = 100'000'000;
constexpr int kJudgeSeconds = 60;

absl::Status ReadName(const GraderJson& value, std::string& name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (!value.is_string()) {
    return InvalidArgument(
        fmt::format("name: give a text: {} needs quotes", Shortened(value.dump(), kMostShown)));
  }
  name = value.get<std::string>();
  if (name.empty() || name.size() > kLongestName || !std::all_of(name.begin(), name.end(), plain)) {
    return InvalidArgument(
        fmt::format("name: give a name of a-z, 0-9 and _, of at most {} characters", kLongestName));
  }
  if (grade::FindMetric(name) != nullptr) {
    return InvalidArgument(fmt::format("name: \"{}\" is a metric; give another name", name));
  }
  return absl::OkStatus();
}

absl::Status ReadCommand(const GraderJson& value, std::vector<std::string>& command) {
  for (const GraderJson& item : value.is_array() ? value : GraderJson::array()) {
    if (item.is_string()) continue;
    return InvalidArgument(fmt::format("command: its items are texts: {} needs quotes",
                                       Shortened(item.dump(), kMostShown)));
  }
  const bool list = value.is_array() && !value.empty() && value.size() <= kMostArguments &&
                    std::all_of(value.begin(), value.end(), [](const GraderJson& item) {
                      return item.is_string() &&
                             item.get_ref<const std::string&>().find('\0') == std::string::npos;
                    });
  if (list) command = value.get<std::vector<std::string>>();
  if (!list || !command[0].starts_with('/')) {
    return InvalidArgument(
        "command: give a list, the program by its absolute path on the nodes and then its "
        "arguments; no shell reads it");
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status ReadNumber(const char* key, const GraderJson& value, T least, T most, T& number) {
  const bool whole = value.is_number_integer();
  if (!(std::is_integral_v<T> ? whole : value.is_number()) || value.get<double>() < least ||
      value.get<double>() > most) {
    return InvalidArgument(fmt::format("{}: give a {} from {} to {}", key,
                                       std::is_integral_v<T> ? "whole number" : "number", least,
                                       most));
  }
  number = value.get<T>();
  return absl::OkStatus();
}

absl::Status ReadText(const char* key, const GraderJson& value, size_t longest, std::string& text) {
  if (!value.is_string()) {
    return InvalidArgument(
        fmt::format("{}: give a text: {} needs quotes", key, Shortened(value.dump(), kMostShown)));
  }
  text = value.get<std::string>();
  if (text.empty() || text.size() > longest || text.find('\0') != std::string::npos) {
    return InvalidArgument(fmt::format("{}: give a text of 1 to {} bytes", key, longest));
  }
  return absl::OkStatus();
}

absl::Status ReadUrl(const GraderJson& value, std::string& url) {
  SFT_RETURN_IF_ERROR(ReadText("url", value, kLongestText, url));
  const bool http = url.starts_with("http://") || url.starts_with("https://");
  if (!http || url.find_first_of(" \t\r\n\\?#@%") != std::string::npos ||
      url.find("/..") != std::string::npos) {
    return InvalidArgument(
        "url: give an address such as https://api.example.com/v1, without a user, a query and "
        "spaces; a key for it is a secret of the project");
  }
  while (url.ends_with('/')) url.pop_back();
  if (url.ends_with("/chat/completions")) {
    return InvalidArgument("url: leave out /chat/completions, which is added");
  }
  return absl::OkStatus();
}

// Of both types. False: the key is none of them.
absl::StatusOr<bool> ReadCommon(const std::string& key, const GraderJson& value, Grader& grader) {
  constexpr double kMost = 1e9;
  absl::Status status;
  if (key == "name") {
    status = ReadName(value, grader.name);
  } else if (key == "low") {
    status = ReadNumber("low", value, -kMost, kMost, grader.low);
  } else if (key == "high") {
    status = ReadNumber("high", value, -kMost, kMost, grader.high);
  } else if (key == "timeout_seconds") {
    status = ReadNumber("timeout_seconds", value, 1, kLongestSeconds, grader.timeout_seconds);
  } else {
    return key == "type";
  }
  SFT_RETURN_IF_ERROR(status);
  return true;
}

absl::Status ReadOfCommand(const std::string& key, const GraderJson& value, Grader& grader) {
  if (key == "command") return ReadCommand(value, grader.command);
  if (key == "memory_mb") {
    return ReadNumber("memory_mb", value, kLeastMegabytes, kMostMegabytes, grader.memory_mb);
  }
  return InvalidArgument(
      fmt::format("\"{}\" is unknown; there are type, name, command, low, high, timeout_seconds "
                  "and memory_mb",
                  key));
}

absl::Status ReadOfJudge(const std::string& key, const GraderJson& value, Grader& grader) {
  if (key == "url") return ReadUrl(value, grader.url);
  if (key == "job") return ReadText("job", value, kLongestText, grader.job);
  if (key == "model") return ReadText("model", value, kLongestText, grader.model);
  if (key == "secret") return ReadText("secret", value, kLongestName, grader.secret);
  if (key == "prompt") return ReadText("prompt", value, kLongestPrompt, grader.prompt);
  if (key == "score_pattern") {
    return ReadText("score_pattern", value, kLongestText, grader.score_pattern);
  }
  if (key == "score_member") {
    return ReadText("score_member", value, kLongestText, grader.score_member);
  }
  if (key == "max_tokens") {
    return ReadNumber("max_tokens", value, 1, kMostTokens, grader.max_tokens);
  }
  if (key == "retries") return ReadNumber("retries", value, 0, kMostRetries, grader.retries);
  if (key == "max_calls") {
    return ReadNumber("max_calls", value, int64_t{1}, kMostCalls, grader.max_calls);
  }
  return InvalidArgument(
      fmt::format("\"{}\" is unknown; there are type, name, url, job, model, secret, prompt, "
                  "score_pattern, score_member, low, high, max_tokens, timeout_seconds, retries "
                  "and max_calls",
                  key));
}

absl::Status CheckJudge(const Grader& grader) {
  if (grader.url.empty() == grader.job.empty()) {
    return InvalidArgument(
        "a judge has either url, an OpenAI-compatible API, or job, a job of kind \"serve\"");
  }
  if (!grader.job.empty() && !(grader.model.empty() && grader.secret.empty())) {
    return InvalidArgument("model and secret go with url: a job has its own model, and no key");
  }
  if (!grader.url.empty() && grader.model.empty()) {
    return InvalidArgument("model is missing: which one the URL is asked for");
  }
  if (grader.prompt.find("{answer}") == std::string::npos) {
    return InvalidArgument(
        "prompt: give what the judge is asked, with {answer} where the answer goes, and {prompt} "
        "and {reference} where it shall see them");
  }
  if (grader.score_pattern.empty() == grader.score_member.empty()) {
    return InvalidArgument(
        "say where the score stands in the reply: score_pattern, a regular expression with one "
        "group, or score_member, a member of the JSON that it writes");
  }
  if (grader.score_pattern.empty()) return absl::OkStatus();
  const absl::StatusOr<grade::Pattern> pattern = grade::Pattern::Make(grader.score_pattern);
  if (!pattern.ok()) {
    return InvalidArgument(fmt::format("score_pattern: {}", Message(pattern.status())));
  }
  if (!pattern->has_group()) {
    return InvalidArgument("score_pattern: put the number into a group, as in \"Score: ([0-9]+)\"");
  }
  return absl::OkStatus();
}

absl::Status CheckMembers(const Grader& grader) {
  if (grader.name.empty()) return InvalidArgument("name is missing: what its score is called");
  const bool command = grader.type == Grader::Type::kCommand;
  if (command && grader.command.empty()) {
    return InvalidArgument("command is missing: the program to run");
  }
  if (!command) SFT_RETURN_IF_ERROR(CheckJudge(grader));
  if (!(grader.low < grader.high)) {
    return InvalidArgument(
        fmt::format("low = {} and high = {}: the best score has to be above the "
                    "worst",
                    grader.low, grader.high));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Grader> ParseGrader(std::string_view json) {
  const GraderJson table = ParseJson(json);
  if (!table.is_object()) {
    return InvalidArgument("is no table: write [[evaluate.grader]] and its keys below");
  }
  Grader grader;
  const auto type = table.find("type");
  if (type != table.end() && *type == "judge") {
    grader.type = Grader::Type::kJudge;
    grader.timeout_seconds = kJudgeSeconds;
  } else if (type == table.end() || *type != "command") {
    return InvalidArgument("type: there are \"command\" and \"judge\"");
  }
  for (const auto& [key, value] : table.items()) {
    SFT_ASSIGN_OR_RETURN(const bool known, ReadCommon(key, value, grader));
    if (known) continue;
    SFT_RETURN_IF_ERROR(grader.type == Grader::Type::kCommand ? ReadOfCommand(key, value, grader)
                                                              : ReadOfJudge(key, value, grader));
  }
  SFT_RETURN_IF_ERROR(CheckMembers(grader));
  return grader;
}

bool HasJudges(const std::vector<std::string>& items) {
  return std::ranges::any_of(items, [](const std::string& item) {
    const absl::StatusOr<Grader> grader = ParseGrader(item);
    return grader.ok() && grader->type == Grader::Type::kJudge;
  });
}

std::string FillJudgePrompt(std::string_view prompt_template, std::string_view prompt,
                            std::string_view answer, std::string_view reference) {
  const std::pair<std::string_view, std::string_view> places[] = {
      {"{prompt}", prompt}, {"{answer}", answer}, {"{reference}", reference}};
  std::string filled;
  for (size_t at = 0; at < prompt_template.size();) {
    const std::string_view rest = prompt_template.substr(at);
    const auto place = std::ranges::find_if(
        places, [&](const auto& each) { return rest.starts_with(each.first); });
    if (place == std::end(places)) {
      filled += prompt_template[at++];
    } else {
      filled += place->second;
      at += place->first.size();
    }
  }
  return filled;
}

}  // namespace sft::spec
