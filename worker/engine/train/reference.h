#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/spec/job_spec.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/data/step_plan.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/train/observer.h"
#include "worker/engine/train/training_model.h"

namespace sft::engine {

// Log-probabilities of answers under the model as it is before training: computed in one pass over
// the rows that the training reaches, and kept in a file of the job's cache, for the epochs that
// follow and for a resume.

// What the pass is over, and where its result is kept.
struct ReferenceJob {
  const spec::JobSpec& spec;
  std::shared_ptr<const Dataset> rows;
  // The micro-batch to ask about in place of one of the rows.
  std::function<MicroBatch(const MicroBatch&)> change;
  std::filesystem::path file;  // empty: not kept
  std::string key;             // a hash of all that the values follow from
  bool writes = false;         // this rank writes the file
  // By document: whether it is asked about, the others get 0; empty: all are.
  std::vector<uint8_t> reached;
  int64_t longest_trained = 0;
};

// One value a document, the same on every rank. Read from the file where every rank finds it whole
// and of this key, else computed with `model`, which must not have been trained yet. A collective.
std::vector<double> ReferenceLogps(const ReferenceJob& job, TrainingModel& model,
                                   Communicator& comm, TrainObserver& observer);

}  // namespace sft::engine
