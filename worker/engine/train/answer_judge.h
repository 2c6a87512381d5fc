#pragma once

#include <functional>
#include <string>
#include <vector>

#include "worker/engine/dist/communicator.h"
#include "worker/engine/train/observer.h"
#include "worker/engine/train/training_model.h"

namespace sft::engine {

// Has the model in training answer validation rows, and grades the answers.
class AnswerJudge {
 public:
  virtual ~AnswerJudge() = default;

  struct Verdict {
    std::vector<ValidationMetric> metrics;  // of all ranks; one that no row gives is left out
    int64_t rows = 0;                       // that were answered and graded, of all ranks
    std::string note;                       // for people: what was cut short; of this rank
  };
  // A collective; every rank gets the same metrics. `goes_on` is asked now and then, tells the
  // watchers that this rank is alive, and ends the answers by returning false.
  virtual Verdict Judge(TrainingModel& model, Communicator& comm,
                        const std::function<bool()>& goes_on) = 0;
};

}  // namespace sft::engine
