#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/spec/grader.h"

namespace sft::grading {

// What a program made of an answer.
struct Verdict {
  absl::StatusOr<double> score = 0.0;  // of 100; or why there is none
  std::string text;                    // what it said beside its score
};

// An answer that is graded.
struct Sample {
  int64_t line = 0;  // of the row
  std::string prompt, reference, answer, finish_reason;
};

// Finds the programs of the graders, each below one of `roots`, and replaces their paths by what
// links lead to. FAILED_PRECONDITION: the node runs none, or not these.
absl::Status FindPrograms(const std::vector<std::string>& roots,
                          std::vector<spec::CommandGrader>& graders);

// What a program writes: a number, or {"score": number, "text": "why"}; as a score of 100.
Verdict ReadVerdict(const spec::CommandGrader& grader, const std::string& output);

// Runs graders of answers, several programs at once, in threads of its own; each in a folder below
// `folder`, which is removed after it. Destroying it ends the programs that run. Thread-safe.
class CommandGraders {
 public:
  CommandGraders(std::vector<spec::CommandGrader> graders, std::vector<std::string> roots,
                 std::string folder, int threads);
  ~CommandGraders();
  CommandGraders(const CommandGraders&) = delete;
  CommandGraders& operator=(const CommandGraders&) = delete;

  const std::vector<spec::CommandGrader>& graders() const { return graders_; }

  // All answers to one row, to be graded by all programs.
  void Add(int64_t row, std::vector<Sample> samples);
  // A row's verdicts, by sample and grader, once all are there; they are given once.
  using Verdicts = std::vector<std::vector<Verdict>>;
  std::optional<Verdicts> Take(int64_t row);
  // Waits until some row is done that was not, or for so long.
  void Wait(std::chrono::milliseconds most);

 private:
  struct Task {
    int64_t row = 0;
    size_t sample = 0, grader = 0;
  };
  struct Row {
    std::vector<Sample> samples;
    Verdicts verdicts;
    size_t missing = 0;
  };

  void Work();
  Verdict Grade(const spec::CommandGrader& grader, const Sample& sample);

  const std::vector<spec::CommandGrader> graders_;
  const std::vector<std::string> roots_;
  const std::string folder_;
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> runs_ = 0;
  Mutex mutex_;
  CondVar work_, done_;
  std::deque<Task> tasks_ SFT_GUARDED_BY(mutex_);
  std::map<int64_t, Row> rows_ SFT_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace sft::grading
