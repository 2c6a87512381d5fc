#pragma once

#include <memory>
#include <string>

#include "worker/rank/answer_job.h"
#include "worker/rank/row_answerer.h"
#include "worker/rank/row_task.h"

namespace sft::rank {

// Answers to a file of prompts, a line each.
class PromptTask : public RowTask {
 public:
  explicit PromptTask(const Launch& launch);

  int64_t lines() const override;
  std::string Identity(int ranks) const override;
  std::string PlaceOf(int64_t number) const override;
  void Open(int64_t first, int64_t last, const Device& device) override;
  bool Step(const Take& take) override;
  std::string Deliver(const std::string& all_lines, const std::string& folder) override;

 private:
  AnswerOptions options_;
  Prompts prompts_;
  std::unique_ptr<RowAnswerer> answerer_;
};

// The job's prompts. Throws UserError, which names the line of one that is none.
Prompts ReadPrompts(const Launch& launch);

}  // namespace sft::rank
