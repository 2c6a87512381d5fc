#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/engine/train/trainer.h"

// Whole runs of a tiny model for the tests of this folder.

namespace sft::engine {

// Keeps what a run reports. Stops or asks for a checkpoint after the steps that are named.
class RecordingObserver : public TrainObserver {
 public:
  void OnPhase(TrainPhase phase, int64_t) override {
    validating += phase == TrainPhase::kValidation;
  }
  void OnProgress(std::string_view phase, int64_t done, int64_t total) override {
    progress.push_back(fmt::format("{} {}/{}", phase, done, total));
  }
  void OnReady(const ReadyReport& report) override { ready = report; }
  void OnResumed(const ResumedReport& report) override { resumed.push_back(report); }
  void OnStep(const StepReport& report) override {
    steps.push_back(report);
    if (on_step) on_step(report.step);
  }
  void OnEval(const EvalReport& report) override { evals.push_back(report); }
  void OnCheckpoint(const CheckpointReport& report) override { checkpoints.push_back(report); }
  void OnMessage(std::string_view message) override {
    messages += std::string(message) + "\n";
    if (on_message) on_message(message);
  }
  void OnWarning(std::string_view message) override { warnings.emplace_back(message); }
  void OnConsistency(const ConsistencyReport& report) override { consistency = report; }
  void OnArtifact(const ArtifactReport& report) override { artifacts.push_back(report); }
  bool StopRequested() override { return Running() == stop_after; }
  bool CheckpointRequested() override { return Running() == ask_after; }

  // Of the steps in a row.
  std::vector<double> Losses() const {
    std::vector<double> losses;
    for (const StepReport& step : steps) losses.push_back(step.loss);
    return losses;
  }

  int64_t stop_after = -1;
  int64_t ask_after = -1;
  std::function<void(int64_t step)> on_step;
  std::function<void(std::string_view message)> on_message;
  int validating = 0;  // how often that phase was told
  std::vector<std::string> progress;
  ReadyReport ready;
  std::vector<ResumedReport> resumed;
  std::vector<StepReport> steps;
  std::vector<EvalReport> evals;
  std::vector<CheckpointReport> checkpoints;
  std::string messages;
  std::vector<std::string> warnings;
  ConsistencyReport consistency;
  std::vector<ArtifactReport> artifacts;

 private:
  // The step under way.
  int64_t Running() const {
    const int64_t before = resumed.empty() ? 0 : resumed[0].step;
    return before + static_cast<int64_t>(steps.size()) + 1;
  }
};

// `count` rows that count upwards: learnable in a few steps.
std::shared_ptr<const Dataset> CountingRows(int count);

// A job of six steps on `model_dir` (tiny_model.h): 12 rows, two a rank and micro-batch.
TrainerOptions TinyRun(const std::filesystem::path& model_dir, spec::Mode mode, int world);

// Runs it on `world` ranks, threads of this process; returns what each reported, by rank. `prepare`
// is called with the observers beforehand.
std::vector<RecordingObserver> RunTrainer(
    const TrainerOptions& options, int world,
    const std::function<void(std::vector<RecordingObserver>&)>& prepare = nullptr,
    Clock& clock = Clock::Real());

}  // namespace sft::engine
