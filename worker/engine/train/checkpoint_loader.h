#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/train/checkpoint_saver.h"
#include "worker/engine/train/training_state.h"

namespace sft::engine {

// A checkpoint that a run goes on from. The ranks of a node and their threads share the work of
// verifying its files; nothing is used before all ranks found all well. Borrows the clock.
class CheckpointLoader {
 public:
  struct Options {
    std::filesystem::path dir;  // with all files of the checkpoint
    int64_t step = 0;           // that it is of; 0: any
    bool changed = false;       // what can be used of another job is
    bool engine_alone = false;  // of that, what another version of the engine wrote
  };

  // Verifies the files and compares the stamp with that of this run. A collective: what one rank
  // finds is thrown on every rank. Throws UserError "checkpoint_mismatch", which names the
  // differences, InfrastructureError "checkpoint_damaged" for another step's, and as ReadManifest
  // and VerifyFile.
  CheckpointLoader(Options options, const Stamp& now, const CheckpointPlace& place,
                   Communicator& comm, Clock& clock);

  const std::filesystem::path& dir() const { return options_.dir; }
  const Manifest& manifest() const { return manifest_; }
  // Differences that were accepted.
  const std::vector<std::string>& changes() const { return changes_; }
  // Reads the states into `model`; returns the best weights (BestWeights). A collective.
  std::vector<at::Tensor> Restore(TrainingModel& model);
  // Seconds that this rank took to verify its files, and to restore, which all ranks end together.
  double verify_seconds() const { return verify_seconds_; }
  double restore_seconds() const { return restore_seconds_; }

 private:
  void Verify(const Stamp& now, const CheckpointPlace& place, const Communicator& comm);
  void CompareStamps(const Stamp& now);

  Options options_;
  at::Device device_;
  Clock& clock_;
  double verify_seconds_ = 0, restore_seconds_ = 0;
  Manifest manifest_;
  std::vector<std::string> changes_;
};

// Runs `check` on every rank and then throws on all what the first rank that failed threw.
void CheckTogether(Communicator& comm, const std::function<void()>& check);

}  // namespace sft::engine
