#include "worker/grading/answer_graders.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "worker/grading/programs.h"

namespace sft::grading {

AnswerGraders::AnswerGraders(Options options, Clock& clock) : options_(std::move(options)) {
  bool programs = false, judges = false;
  for (const spec::Grader& grader : options_.graders) {
    const bool judge = grader.type == spec::Grader::Type::kJudge;
    judges_.push_back(
        judge ? std::make_unique<Judge>(grader, AskWorkerOn(options_.judge_socket, stop_), clock)
              : nullptr);
    (judge ? judges : programs) = true;
  }
  const auto start = [this](int threads, Tasks& tasks) {
    for (int i = 0; i < std::max(threads, 1); ++i) {
      threads_.emplace_back([this, &tasks] { Work(tasks); });
    }
  };
  const MutexLock lock(mutex_);
  if (programs) start(options_.threads, of_programs_);
  if (judges) start(options_.judge_threads, of_judges_);
}

AnswerGraders::~AnswerGraders() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    of_programs_.clear();
    of_judges_.clear();
  }
  work_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void AnswerGraders::Add(int64_t row, std::vector<Sample> samples) {
  const MutexLock lock(mutex_);
  Row& added = rows_[row];
  added.verdicts.assign(samples.size(), std::vector<Verdict>(judges_.size()));
  added.missing = samples.size() * judges_.size();
  added.samples = std::move(samples);
  for (size_t sample = 0; sample < added.samples.size(); ++sample) {
    for (size_t grader = 0; grader < judges_.size(); ++grader) {
      (judges_[grader] == nullptr ? of_programs_ : of_judges_).push_back({row, sample, grader});
    }
  }
  work_.NotifyAll();
}

std::optional<AnswerGraders::Verdicts> AnswerGraders::Take(int64_t row) {
  const MutexLock lock(mutex_);
  const auto found = rows_.find(row);
  if (found == rows_.end() || found->second.missing > 0) return std::nullopt;
  Verdicts verdicts = std::move(found->second.verdicts);
  rows_.erase(found);
  return verdicts;
}

void AnswerGraders::Wait(std::chrono::milliseconds most) {
  const MutexLock lock(mutex_);
  (void)done_.WaitFor(mutex_, most);
}

void AnswerGraders::Work(Tasks& tasks) {
  for (;;) {
    Task task;
    Sample sample;
    {
      const MutexLock lock(mutex_);
      while (tasks.empty() && !stop_) work_.Wait(mutex_);
      if (stop_) return;
      task = tasks.front();
      tasks.pop_front();
      sample = rows_.at(task.row).samples[task.sample];
    }
    Verdict verdict = Grade(task.grader, sample);
    const MutexLock lock(mutex_);
    Row& row = rows_.at(task.row);
    row.verdicts[task.sample][task.grader] = std::move(verdict);
    if (--row.missing == 0) done_.NotifyAll();
  }
}

Verdict AnswerGraders::Grade(size_t grader, const Sample& sample) {
  if (judges_[grader] != nullptr) return judges_[grader]->Grade(sample, stop_);
  return RunProgram(options_.graders[grader], sample, options_.roots,
                    fmt::format("{}/run-{}", options_.folder, ++runs_), stop_);
}

}  // namespace sft::grading
