#include "worker/grading/command_graders.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/json.h"
#include "common/base/plain_text.h"
#include "common/io/file.h"
#include "worker/grading/sandbox.h"

namespace sft::grading {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostText = 2000;  // bytes of what a program says that are kept

std::string CanonicalOf(const std::string& path) {
  std::error_code error;
  const fs::path found = fs::canonical(path, error);
  return error ? "" : found.string();
}

bool IsBelow(const std::string& path, const std::string& root) {
  return !root.empty() && path.starts_with(root == "/" ? root : root + "/");
}

}  // namespace

absl::Status FindPrograms(const std::vector<std::string>& roots,
                          std::vector<spec::CommandGrader>& graders) {
  if (graders.empty()) return absl::OkStatus();
  if (roots.empty()) {
    return FailedPrecondition(
        "this node runs no programs that grade answers: ask its operator to start the worker with "
        "--grader-root FOLDER, and to put the program there");
  }
  if (const absl::Status able = CheckConfinement(); !able.ok()) {
    return FailedPrecondition(
        fmt::format("this node cannot confine programs that grade answers: {}", Message(able)));
  }
  for (spec::CommandGrader& grader : graders) {
    std::string& program = grader.command[0];
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
  }
  return absl::OkStatus();
}

Verdict ReadVerdict(const spec::CommandGrader& grader, const std::string& output) {
  Verdict verdict;
  const nlohmann::json said = ParseJson(output);
  nlohmann::json score = said;
  if (said.is_object()) {
    score = said.value("score", nlohmann::json());
    const auto text = said.find("text");
    if (text != said.end() && text->is_string()) {
      verdict.text = Shortened(text->get<std::string>(), kMostText);
    }
  }
  if (!score.is_number() || !std::isfinite(score.get<double>())) {
    verdict.score = InvalidArgument(
        fmt::format("{} wrote no score: it writes a number, or {{\"score\": number, \"text\": "
                    "\"why\"}}, not \"{}\"",
                    grader.name, Plain(output, 80)));
    return verdict;
  }
  const double value = score.get<double>();
  if (value < grader.low || value > grader.high) {
    verdict.score =
        InvalidArgument(fmt::format("{} gave the score {}, which is not between {} and {}",
                                    grader.name, value, grader.low, grader.high));
    return verdict;
  }
  verdict.score = 100 * ((value - grader.low) / (grader.high - grader.low));
  return verdict;
}

CommandGraders::CommandGraders(std::vector<spec::CommandGrader> graders,
                               std::vector<std::string> roots, std::string folder, int threads)
    : graders_(std::move(graders)), roots_(std::move(roots)), folder_(std::move(folder)) {
  for (int i = 0; i < std::max(threads, 1); ++i) threads_.emplace_back([this] { Work(); });
}

CommandGraders::~CommandGraders() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    tasks_.clear();
  }
  work_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void CommandGraders::Add(int64_t row, std::vector<Sample> samples) {
  const MutexLock lock(mutex_);
  Row& added = rows_[row];
  added.verdicts.assign(samples.size(), std::vector<Verdict>(graders_.size()));
  added.missing = samples.size() * graders_.size();
  added.samples = std::move(samples);
  for (size_t sample = 0; sample < added.samples.size(); ++sample) {
    for (size_t grader = 0; grader < graders_.size(); ++grader) {
      tasks_.push_back({row, sample, grader});
    }
  }
  work_.NotifyAll();
}

std::optional<CommandGraders::Verdicts> CommandGraders::Take(int64_t row) {
  const MutexLock lock(mutex_);
  const auto found = rows_.find(row);
  if (found == rows_.end() || found->second.missing > 0) return std::nullopt;
  Verdicts verdicts = std::move(found->second.verdicts);
  rows_.erase(found);
  return verdicts;
}

void CommandGraders::Wait(std::chrono::milliseconds most) {
  const MutexLock lock(mutex_);
  (void)done_.WaitFor(mutex_, most);
}

void CommandGraders::Work() {
  for (;;) {
    Task task;
    Sample sample;
    {
      const MutexLock lock(mutex_);
      while (tasks_.empty() && !stop_) work_.Wait(mutex_);
      if (stop_) return;
      task = tasks_.front();
      tasks_.pop_front();
      sample = rows_.at(task.row).samples[task.sample];
    }
    Verdict verdict = Grade(graders_[task.grader], sample);
    const MutexLock lock(mutex_);
    Row& row = rows_.at(task.row);
    row.verdicts[task.sample][task.grader] = std::move(verdict);
    if (--row.missing == 0) done_.NotifyAll();
  }
}

Verdict CommandGraders::Grade(const spec::CommandGrader& grader, const Sample& sample) {
  const nlohmann::ordered_json input = {
      {"item", {{"line", sample.line}, {"prompt", sample.prompt}, {"reference", sample.reference}}},
      {"sample", {{"output_text", sample.answer}, {"finish_reason", sample.finish_reason}}}};
  Confinement confinement;
  confinement.deadline = std::chrono::seconds(grader.timeout_seconds);
  confinement.memory_bytes = grader.memory_mb << 20;
  confinement.folder = fmt::format("{}/run-{}", folder_, ++runs_);
  confinement.roots = roots_;
  Verdict failed;
  if (const absl::Status made = io::MakeDirs(confinement.folder); !made.ok()) {
    failed.score = made;
    return failed;
  }
  const absl::StatusOr<std::string> output =
      RunConfined(grader.command, DumpJson(input) + "\n", confinement, stop_);
  (void)io::RemoveAll(confinement.folder);
  if (output.ok()) return ReadVerdict(grader, *output);
  failed.score = InvalidArgument(fmt::format("{} {}", grader.name, Message(output.status())));
  return failed;
}

}  // namespace sft::grading
