#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/spec/grader.h"
#include "worker/grading/judges.h"
#include "worker/grading/verdict.h"

namespace sft::grading {

// Grades answers by programs and judges, several answers at once, in threads of its own. Destroying
// it ends the programs that run and the questions under way. Thread-safe.
class AnswerGraders {
 public:
  struct Options {
    std::vector<spec::Grader> graders;  // with the programs that FindPrograms found
    std::vector<std::string> roots;     // of programs
    std::string folder;                 // each program runs in one of its own below it
    std::string judge_socket;           // of the node's worker
    int threads = 1;                    // that run programs
    int judge_threads = 1;              // that wait for judges
  };
  explicit AnswerGraders(Options options, Clock& clock = Clock::Real());
  ~AnswerGraders();
  AnswerGraders(const AnswerGraders&) = delete;
  AnswerGraders& operator=(const AnswerGraders&) = delete;

  // All answers to one row, to be graded by all graders.
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
  using Tasks = std::deque<Task>;

  void Work(Tasks& tasks);
  Verdict Grade(size_t grader, const Sample& sample);

  const Options options_;
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> runs_ = 0;
  std::vector<std::unique_ptr<Judge>> judges_;  // by grader; null: a program
  Mutex mutex_;
  CondVar work_, done_;
  // A judge that is slow keeps no program waiting.
  Tasks of_programs_ SFT_GUARDED_BY(mutex_), of_judges_ SFT_GUARDED_BY(mutex_);
  std::map<int64_t, Row> rows_ SFT_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace sft::grading
