#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/grade/metric.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/data/question.h"
#include "worker/engine/generate/generator.h"
#include "worker/grading/answer_graders.h"
#include "worker/rank/answer_job.h"
#include "worker/rank/row_answerer.h"
#include "worker/rank/row_task.h"

namespace sft::rank {

// How a job's held-out rows are read: as rows of training, of any length.
engine::PrepareOptions HeldOutRows(const Launch& launch);

// What one model made of a row.
struct RowResult {
  RowAnswer answer;
  double nll = 0;  // of the row's tokens with loss, as training has them
};

// Answers and grades held-out rows: the base's answer beside that of the adapter, and how likely
// each finds the reference. Programs and judges of the job's may grade too (answer_graders.h): a
// row is given once they have. A line is {"line", "prompt", "reference", "reference_tokens",
// "reference_bytes", "base": {"answer", "finish_reason", "answer_tokens", "nll", "scores"},
// "tuned": ... (with an adapter), "answer_tokens"}; a metric that cannot grade the row has its
// reason among "ungraded" in place of a score.
//
// Both models answer in one batch; where the adapter takes the place of whole tensors of its base,
// all rows are asked of the base first and then of the adapter.
class EvaluationTask : public RowTask {
 public:
  explicit EvaluationTask(const Launch& launch);

  // Throws UserError, with file and line, for the first row of which the model has too few
  // positions for the question with its answer, or for the whole row, which is scored.
  void CheckLengths(int64_t positions) const;

  int64_t lines() const override { return static_cast<int64_t>(questions_.size()); }
  std::string Identity(int ranks) const override;
  std::string PlaceOf(int64_t number) const override;
  void Open(int64_t first, int64_t last, const Device& device) override;
  bool Step(const Take& take) override;
  std::string Deliver(const std::string& all_lines, const std::string& folder) override;

 private:
  struct Row {
    engine::Document document;
    engine::Question question;
  };
  // What a request of the batch is for.
  struct Asked {
    int64_t number = 0;
    size_t side = 0;
    bool answers = false;  // else it scores the reference
  };
  // The results of a row so far; two for each side.
  struct Pending {
    std::vector<RowResult> sides;
    size_t missing = 0;
  };
  using Verdicts = grading::AnswerGraders::Verdicts;

  // That the calls a judge may get are enough for each answer.
  void CheckBudgets() const;
  void Load(const std::string& adapter, const std::vector<size_t>& sides);
  void Ask(int64_t number, size_t side);
  engine::GenerationRequest QuestionOf(const Row& row, int64_t number) const;
  void Keep(const engine::GenerationAnswer& made);
  // Asks the job's programs and judges for what they think of a row's answers.
  void AskGraders(int64_t number, const Pending& pending);
  // Gives the rows that are next in order and done.
  void Give(const Take& take);
  std::string LineOf(int64_t number, const std::vector<RowResult>& sides,
                     const Verdicts& verdicts) const;

  AnswerOptions options_;
  grade::Grader grader_;
  engine::ChatTokenizer tokenizer_;
  std::string file_;  // its name for messages
  std::shared_ptr<const engine::Dataset> rows_;
  std::vector<Row> questions_;
  int64_t without_question_ = 0;
  std::string model_name_, adapter_name_;
  std::vector<std::string> graders_json_;    // as the job has them
  grading::AnswerGraders::Options grading_;  // the job's graders, beside the metrics

  std::optional<Device> device_;
  int64_t next_ = 0, first_ = 0, last_ = 0;
  std::unique_ptr<engine::Generator> generator_;
  std::unique_ptr<engine::BatchGenerator> batch_;
  std::vector<Asked> asked_;                         // by the batch's number
  std::map<int64_t, Pending> pending_;               // by number
  bool base_first_ = false;                          // the adapter's turn is still to come
  std::unique_ptr<grading::AnswerGraders> graders_;  // null: the job has none
};

}  // namespace sft::rank
