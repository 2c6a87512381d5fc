#include "worker/grading/programs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/base/plain_text.h"
#include "common/io/file.h"
#include "worker/grading/sandbox.h"

namespace sft::grading {
namespace {

namespace fs = std::filesystem;

std::string CanonicalOf(const std::string& path) {
  std::error_code error;
  const fs::path found = fs::canonical(path, error);
  return error ? "" : found.string();
}

bool IsBelow(const std::string& path, const std::string& root) {
  return !root.empty() && path.starts_with(root == "/" ? root : root + "/");
}

absl::Status FindProgram(const std::vector<std::string>& roots, std::string& program) {
  const std::string found = CanonicalOf(program);
  const bool below = std::any_of(roots.begin(), roots.end(), [&](const std::string& root) {
    return IsBelow(found, CanonicalOf(root));
  });
  // Whether something is there is not said of other folders.
  if (!below) {
    return FailedPrecondition(
        fmt::format("{} is no program below {}, where this node's operator lets programs that "
                    "grade answers lie",
                    program, fmt::join(roots, ", ")));
  }
  if (!fs::is_regular_file(found) || access(found.c_str(), X_OK) != 0) {
    return FailedPrecondition(program + " is no file that ranks may run: set its mode to 0755");
  }
  program = found;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<double> ScoreOf(const spec::Grader& grader, double given) {
  if (given >= grader.low && given <= grader.high) {
    return 100 * ((given - grader.low) / (grader.high - grader.low));
  }
  return InvalidArgument(fmt::format("{} gave the score {}, which is not between {} and {}",
                                     grader.name, given, grader.low, grader.high));
}

absl::Status FindPrograms(const std::vector<std::string>& roots, int64_t most_memory_mb,
                          std::vector<spec::Grader>& graders) {
  const auto is_command = [](const spec::Grader& grader) {
    return grader.type == spec::Grader::Type::kCommand;
  };
  if (std::ranges::none_of(graders, is_command)) return absl::OkStatus();
  if (roots.empty()) {
    return FailedPrecondition(
        "this node runs no programs that grade answers: ask its operator to start the worker with "
        "--grader-root FOLDER, and to put the program there");
  }
  if (const absl::Status able = CheckConfinement(); !able.ok()) {
    return FailedPrecondition(
        fmt::format("this node cannot confine programs that grade answers: {}", Message(able)));
  }
  for (spec::Grader& grader : graders) {
    if (!is_command(grader)) continue;
    if (most_memory_mb > 0 && grader.memory_mb > most_memory_mb) {
      return FailedPrecondition(fmt::format(
          "{} wants memory_mb = {}, and this node gives programs that grade answers {}: "
          "lower it, or ask the operator for a higher --grader-memory-gb",
          grader.name, grader.memory_mb, most_memory_mb));
    }
    SFT_RETURN_IF_ERROR(FindProgram(roots, grader.command[0]));
  }
  return absl::OkStatus();
}

Verdict ReadVerdict(const spec::Grader& grader, const std::string& output) {
  Verdict verdict;
  const nlohmann::json said = ParseJson(output);
  nlohmann::json score = said;
  if (said.is_object()) {
    score = said.value("score", nlohmann::json());
    const auto text = said.find("text");
    if (text != said.end() && text->is_string()) {
      verdict.text = Shortened(text->get<std::string>(), kMostVerdictText);
    }
  }
  if (!score.is_number() || !std::isfinite(score.get<double>())) {
    verdict.score = InvalidArgument(
        fmt::format("{} wrote no score: it writes a number, or {{\"score\": number, \"text\": "
                    "\"why\"}}, not \"{}\"",
                    grader.name, Plain(output, 80)));
    return verdict;
  }
  verdict.score = ScoreOf(grader, score.get<double>());
  return verdict;
}

Verdict RunProgram(const spec::Grader& grader, const Sample& sample,
                   const std::vector<std::string>& roots, const std::string& folder,
                   const std::atomic<bool>& stop) {
  const nlohmann::ordered_json input = {
      {"item", {{"line", sample.line}, {"prompt", sample.prompt}, {"reference", sample.reference}}},
      {"sample", {{"output_text", sample.answer}, {"finish_reason", sample.finish_reason}}}};
  Confinement confinement;
  confinement.deadline = std::chrono::seconds(grader.timeout_seconds);
  confinement.memory_bytes = grader.memory_mb << 20;
  confinement.folder = folder;
  confinement.roots = roots;
  Verdict failed;
  if (const absl::Status made = io::MakeDirs(folder); !made.ok()) {
    failed.score = made;
    return failed;
  }
  const absl::StatusOr<std::string> output =
      RunConfined(grader.command, DumpJson(input) + "\n", confinement, stop);
  (void)io::RemoveAll(folder);
  if (output.ok()) return ReadVerdict(grader, *output);
  failed.score = InvalidArgument(fmt::format("{} {}", grader.name, Message(output.status())));
  return failed;
}

}  // namespace sft::grading
