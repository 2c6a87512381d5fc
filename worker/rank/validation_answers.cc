#include "worker/rank/validation_answers.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/duration.h"
#include "common/grade/metric.h"
#include "common/io/host_memory.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/question.h"
#include "worker/engine/generate/batch_generator.h"
#include "worker/rank/answer_part.h"

namespace sft::rank {
namespace {

constexpr int64_t kMostAtOnce = 32;
constexpr Nanos kAskInterval = std::chrono::seconds(2);

std::string WhyLossAlone(const spec::JobSpec& spec) {
  const auto sharding = spec.parallelism.sharding;
  const bool cut =
      sharding == spec::Sharding::kFullShard || sharding == spec::Sharding::kHybridShard;
  if (cut && spec.compute.gpu_count > 1) return "its weights are cut over the ranks";
  if (spec.parallelism.offload_param) return "its weights stay in host memory";
  if (spec.fp8()) return "its weights are multiplied in FP8";
  return "";
}

class ValidationAnswers : public engine::AnswerJudge {
 public:
  ValidationAnswers(const spec::JobSpec& spec, const engine::ChatTokenizer& tokenizer,
                    std::shared_ptr<const engine::Dataset> rows, grade::Grader grader,
                    const Device& device, Clock& clock)
      : options_(spec.training.validation),
        local_ranks_(std::max(spec.compute.gpus_per_node, 1)),
        budget_bytes_(static_cast<int64_t>(spec.compute.memory_budget_gb * 1e9)),
        tokenizer_(tokenizer),
        rows_(std::move(rows)),
        grader_(std::move(grader)),
        device_(device),
        clock_(clock) {
    const auto wanted = static_cast<size_t>(options_.generate_rows);
    for (int64_t i = 0; i < rows_->size() && (wanted == 0 || questions_.size() < wanted); ++i) {
      if (auto question = engine::QuestionOf(rows_->Get(i), tokenizer_)) {
        questions_.push_back(*std::move(question));
      }
    }
    if (questions_.empty()) {
      throw engine::UserError(
          "training.validation.predict_with_generate: no validation row has a question and its "
          "answer",
          "bad_rows", "give rows of messages, or of a prompt and a completion, or leave it out");
    }
  }

  Verdict Judge(engine::TrainingModel& model, engine::Communicator& comm,
                const std::function<bool()>& goes_on) override {
    RowShare share{comm.rank(), comm.world(), static_cast<int64_t>(questions_.size())};
    const int64_t count = most_ < 0 ? share.size() : std::min(most_, share.size());
    Verdict verdict;
    std::vector<double> sums;
    const bool complete = Answer(model, share.begin(), count, goes_on, sums, verdict);
    sums.push_back(complete ? 0 : 1);
    at::Tensor all = at::tensor(sums, at::kDouble).to(comm.device());
    comm.AllReduceSum(all);
    const at::Tensor host = all.cpu();
    const double* place = host.const_data_ptr<double>();
    // What a part of the rows gives, of a rank the short answers, says nothing of all.
    if (place[sums.size() - 1] > 0) return verdict;
    verdict.rows = static_cast<int64_t>(*place++);
    for (const grade::Metric* metric : grader_.metrics()) {
      const std::span<const double> own(place, metric->sums);
      place += metric->sums;
      if (verdict.rows == 0) continue;
      if (const auto value = grade::ValueOf(*metric, own)) {
        verdict.metrics.push_back({"val." + std::string(metric->name), *value});
      }
    }
    return verdict;
  }

 private:
  // Tokens of keys and values that there is room for, `longest` at least.
  int64_t RoomFor(engine::TrainingModel& model, int64_t longest, int64_t count) const {
    const int64_t wanted =
        std::min(count, kMostAtOnce) * (longest + engine::PageTable::kPageTokens);
    int64_t room = 0;
    if (device_.cuda != nullptr) {
      const int index = device_.torch.index();
      const engine::CudaMemory held = device_.cuda->devices->Memory(index);
      room = device_.cuda->devices->DriverMemory(index).free + held.reserved - held.allocated;
      if (budget_bytes_ > 0) {
        room = std::min(room, std::max<int64_t>(0, budget_bytes_ - held.allocated));
      }
      room /= 2;
    } else if (const auto free = io::AvailableMemory(); free.ok()) {
      room = *free / local_ranks_ / 4;
    }
    const int64_t requests = std::min(count, kMostAtOnce) * options_.generate_num_beams;
    room -= requests * engine::StateBytesOf(model.decoder(), model.compute_type());
    const int64_t token = engine::TokenBytesOf(model.decoder(), model.compute_type());
    return std::clamp(room / std::max<int64_t>(1, token), int64_t{0}, wanted);
  }

  // Sets the graded rows of this rank and what they add to each metric, one behind the other. False
  // when not all were answered.
  bool Answer(engine::TrainingModel& model, int64_t first, int64_t count,
              const std::function<bool()>& goes_on, std::vector<double>& sums, Verdict& verdict) {
    size_t width = 1;
    for (const grade::Metric* metric : grader_.metrics()) width += metric->sums;
    sums.assign(width, 0.0);
    if (count == 0) return true;
    int64_t longest = 0;
    for (int64_t i = first; i < first + count; ++i) {
      longest =
          std::max(longest, engine::BatchGenerator::TokensOf(
                                static_cast<int64_t>(At(i).prompt.size()),
                                options_.generate_max_new_tokens, options_.generate_num_beams));
    }
    const int64_t tokens = RoomFor(model, longest, count);
    if (tokens < longest) {
      verdict.note = fmt::format(
          "validation has its loss alone: there is no memory for keys and values of {} tokens{} "
          "beside the training, only of {}{}",
          longest,
          options_.generate_num_beams > 1
              ? fmt::format(" (a search with {} beams)", options_.generate_num_beams)
              : "",
          tokens,
          options_.generate_num_beams > 1 ? ": lower training.validation.generate_num_beams" : "");
      return false;
    }
    engine::BatchGenerator batch(
        model.config(), model.decoder(), device_.torch, model.compute_type(),
        /*optional_adapters=*/false,
        {.cache_tokens = tokens, .most_requests = kMostAtOnce * options_.generate_num_beams});
    for (int64_t i = first; i < first + count; ++i) batch.Add(RequestFor(At(i)));
    return Run(batch, first, count, goes_on, sums, verdict);
  }

  // False when the rank was stopped, or out of time, before all had answered.
  bool Run(engine::BatchGenerator& batch, int64_t first, int64_t count,
           const std::function<bool()>& goes_on, std::vector<double>& sums, Verdict& verdict) {
    const MonoTime begin = clock_.Mono();
    MonoTime asked = begin;
    int64_t done = 0;
    while (!batch.idle()) {
      for (const engine::GenerationAnswer& made : batch.Step()) {
        Grade(made, At(first + made.request), sums);
        ++done;
      }
      const MonoTime now = clock_.Mono();
      const bool late =
          options_.generate_seconds > 0 && SecondsOf(now - begin) > options_.generate_seconds;
      if (late && !batch.idle()) {
        most_ = done > 0 ? done : count / 2;
        verdict.note = fmt::format(
            "validation answers took longer than generate_seconds = {0}: those of this validation "
            "do not count, and from now on this rank answers {1} of its {2} rows",
            options_.generate_seconds, most_, count);
        return false;
      }
      if (now - asked < kAskInterval) continue;
      asked = now;
      if (!goes_on()) return batch.idle();
    }
    return true;
  }

  const engine::Question& At(int64_t number) const {
    return questions_[static_cast<size_t>(number)];
  }

  engine::GenerationRequest RequestFor(const engine::Question& question) const {
    engine::GenerationRequest request;
    request.prompt.assign(question.prompt.begin(), question.prompt.end());
    request.max_new_tokens = options_.generate_max_new_tokens;
    request.beams.beams = options_.generate_num_beams;
    request.stop_ids = tokenizer_.stop_ids();
    return request;
  }

  void Grade(const engine::GenerationAnswer& made, const engine::Question& question,
             std::vector<double>& sums) const {
    const auto grades = grader_.Grade(tokenizer_.DecodeAnswer(made.tokens), question.reference);
    sums[0] += 1;
    size_t place = 1;
    for (size_t i = 0; i < grades.size(); ++i) {
      const size_t width = grader_.metrics()[i]->sums;
      for (size_t k = 0; grades[i].ok() && k < width; ++k) sums[place + k] += (*grades[i])[k];
      place += width;
    }
  }

  const spec::JobSpec::Training::Validation options_;
  const int local_ranks_;
  const int64_t budget_bytes_;  // of the allocator; 0: all of the GPU
  const engine::ChatTokenizer tokenizer_;
  const std::shared_ptr<const engine::Dataset> rows_;  // prompts are read in place
  const grade::Grader grader_;
  const Device device_;
  Clock& clock_;
  std::vector<engine::Question> questions_;
  int64_t most_ = -1;  // rows of this rank that there was time for; -1: all
};

}  // namespace

std::shared_ptr<engine::AnswerJudge> MakeAnswerJudge(const spec::JobSpec& spec,
                                                     const engine::ChatTokenizer& tokenizer,
                                                     std::shared_ptr<const engine::Dataset> rows,
                                                     const Device& device, Clock& clock) {
  if (const std::string why = WhyLossAlone(spec); !why.empty()) {
    fmt::print("validation has its loss alone, no answers: {}\n", why);
    return nullptr;
  }
  const auto& validation = spec.training.validation;
  auto grader = grade::Grader::Make(validation.generate_metrics, validation.generate_pattern);
  if (!grader.ok()) {
    throw engine::UserError(
        "training.validation.generate_metrics: " + std::string(Message(grader.status())),
        "bad_metric", "correct the job file");
  }
  return std::make_shared<ValidationAnswers>(spec, tokenizer, std::move(rows), *std::move(grader),
                                             device, clock);
}

}  // namespace sft::rank
