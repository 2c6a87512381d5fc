#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "worker/channel/launch.h"
#include "worker/engine/train/background.h"
#include "worker/engine/train/observer.h"
#include "worker/rank/recording.h"

namespace sft::rank {

// Records what the host and the GPU do in steps of this rank, by LibTorch's profiler, which on a
// GPU asks CUPTI: of a CPU all operations, of a GPU its kernels and copies and CUDA's calls. Does
// not change what is computed. What fails is said in the table and ends no training. One thread,
// the training's; the trace is written by another.
class StepProfile {
 public:
  struct Options {
    int rank = 0;
    std::string device;                 // its name
    bool gpu = false;                   // that it is one
    std::function<void()> synchronize;  // waits for the GPU
    std::string attempt_dir;  // where those who ask find recordings (worker/channel/step_table.h)
    // If not empty, also records step kFixedStep of this process into this file, packed with gzip.
    std::string file;
  };
  // Allocations and plans of the first ones are behind it.
  static constexpr int64_t kFixedStep = 4;
  // So many steps more are recorded, and left out: ranks are up to a step apart when they are
  // asked, and in these steps one waits for another's profiler.
  static constexpr int64_t kBefore = 2, kAfter = 1;

  // `clock` is borrowed.
  StepProfile(Options options, Clock& clock) : options_(std::move(options)), clock_(clock) {}
  // Waits until what was recorded is written.
  ~StepProfile() { writing_.Wait(); }

  // The command "profile": the recording begins with the next step, and ends one that is under way.
  void Ask(const channel::Command& command);
  // To be told of each phase when it begins.
  void OnPhase(engine::TrainPhase phase);

 private:
  // A recording that is wanted or under way.
  struct Wish {
    std::string folder;  // empty: options_.file
    int64_t steps = 0;
    int64_t before = 0, after = 0;  // recorded too, and left out
    int64_t recorded = 0;           // of all of these
    bool begun = false;
    Nanos stall{};
    double step_before = 0;  // seconds
  };

  void BeginStep();
  void EndStep();
  // Ends the recording early, and says so; a wish whose recording has not begun fails.
  void EndEarly(const std::string& why);
  bool Withdrawn() const;
  void Start();
  void Finish(const std::string& note);
  void Drop();
  // The table that the one who asked reads; a fixed step has none.
  static void Answer(const Wish& wish, const channel::StepTable& table);
  static void Refuse(const Wish& wish, const std::string& why);
  double MedianStep() const;

  const Options options_;
  Clock& clock_;
  std::optional<Wish> wish_;
  int64_t steps_ = 0;  // that have ended
  MonoTime step_begun_{};
  std::deque<double> times_;  // of the last steps that were not recorded, seconds
  engine::Background writing_;
};

}  // namespace sft::rank
