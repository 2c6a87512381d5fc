#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace sft::spec {

// What grades answers beside the metrics: a table [[evaluate.grader]] of a job that evaluates.
struct Grader {
  enum class Type {
    kCommand,  // a program of the user's on the node
    kJudge,    // a language model that is asked what it thinks of an answer
  };
  Type type = Type::kCommand;
  std::string name;          // of its score, among those of the metrics
  double low = 0, high = 1;  // the scores that it gives: low is 0 of 100, high is 100
  int timeout_seconds = 10;  // for one answer; of a judge for one call

  // kCommand
  std::vector<std::string> command;  // the program, by its absolute path, and its arguments
  int64_t memory_mb = 1024;

  // kJudge. One of url and job is given.
  std::string url;     // of an OpenAI-compatible API, without /chat/completions
  std::string job;     // a job of kind "serve" of the same project
  std::string model;   // that the URL is asked for
  std::string secret;  // of the project, sent to the URL as a bearer token; empty: none
  std::string prompt;  // with {prompt}, {answer} and {reference}
  // Where the score stands in the reply; one of both is given.
  std::string score_pattern;   // RE2 with one group, the last match counts
  std::string score_member;    // a member of the JSON object that the reply holds
  int max_tokens = 512;        // of a reply
  int retries = 3;             // further calls after one without a reply
  int64_t max_calls = 10'000;  // of the whole job, retries included
};

// Parses an item of evaluate.grader, a JSON object. InvalidArgument says what would be right.
absl::StatusOr<Grader> ParseGrader(std::string_view json);

// Whether one of these items is a judge.
bool HasJudges(const std::vector<std::string>& items);

// What a judge of this template is asked about an answer. The texts that are filled in are not
// looked at again: an answer that holds "{reference}" keeps it.
std::string FillJudgePrompt(std::string_view prompt_template, std::string_view prompt,
                            std::string_view answer, std::string_view reference);

}  // namespace sft::spec
