#include "worker/rank/evaluation_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/io/sha256.h"
#include "worker/engine/base/error.h"
#include "worker/engine/nn/dropout.h"
#include "worker/grading/programs.h"
#include "worker/rank/answer_part.h"
#include "worker/rank/evaluation_report.h"

namespace sft::rank {
namespace {

using LineJson = nlohmann::ordered_json;

constexpr const char* kSides[] = {"base", "tuned"};
constexpr int kMostPrograms = 8;  // that run at once
// Questions to judges under way of all ranks: as many as the server takes of a job.
constexpr int kJudgesAsked = 16;
constexpr std::chrono::milliseconds kGraderPatience{200};

grade::Grader MakeGrader(const spec::JobSpec::Evaluate& evaluate) {
  auto grader = grade::Grader::Make(evaluate.metrics, evaluate.pattern);
  if (!grader.ok()) {
    throw engine::UserError("evaluate.metrics: " + std::string(Message(grader.status())),
                            "bad_metric", "correct the job file");
  }
  return *std::move(grader);
}

// The job's graders; its programs have to be ones that this node runs.
std::vector<spec::Grader> GradersOf(const Launch& launch) {
  std::vector<spec::Grader> graders;
  absl::Status status;
  for (const std::string& item : launch.spec.evaluate.grader) {
    absl::StatusOr<spec::Grader> grader = spec::ParseGrader(item);
    if (grader.ok()) {
      graders.push_back(*std::move(grader));
    } else {
      status = grader.status();
    }
  }
  if (status.ok()) {
    status = grading::FindPrograms(launch.file.grader_roots, launch.file.grader_memory_mb, graders);
  }
  if (!status.ok()) {
    throw engine::UserError("evaluate.grader: " + std::string(Message(status)), "bad_grader",
                            "correct the job file, or ask the operator of the node");
  }
  return graders;
}

// What the job's graders made of an answer, beside the metrics.
void AddVerdicts(const std::vector<spec::Grader>& graders,
                 const std::vector<grading::Verdict>& verdicts, LineJson& side) {
  for (size_t i = 0; i < verdicts.size(); ++i) {
    const std::string& name = graders[i].name;
    if (verdicts[i].score.ok()) {
      side["scores"][name] = *verdicts[i].score;
    } else {
      side["ungraded"][name] = std::string(Message(verdicts[i].score.status()));
    }
    if (!verdicts[i].text.empty()) side["said"][name] = verdicts[i].text;
  }
}

LineJson ResultJson(const RowResult& result, const grade::Grader& grader,
                    const std::string& reference) {
  LineJson json = {{"answer", result.answer.text}, {"finish_reason", result.answer.finish_reason}};
  if (!result.answer.error.empty()) json["error"] = result.answer.error;
  json["answer_tokens"] = result.answer.tokens;
  json["nll"] = result.nll;  // null where it is no number
  LineJson scores = LineJson::object(), ungraded = LineJson::object();
  const auto grades = grader.Grade(result.answer.text, reference);
  for (size_t i = 0; i < grades.size(); ++i) {
    const grade::Metric& metric = *grader.metrics()[i];
    const std::string name(metric.name);
    if (!grades[i].ok()) {
      ungraded[name] = std::string(Message(grades[i].status()));
    } else if (const auto value = grade::ValueOf(metric, *grades[i])) {
      scores[name] = *value;
    }
  }
  json["scores"] = scores;
  if (!ungraded.empty()) json["ungraded"] = ungraded;
  return json;
}

}  // namespace

engine::PrepareOptions HeldOutRows(const Launch& launch) {
  engine::PrepareOptions options = engine::PrepareOptions::ForTraining(
      launch.spec, launch.file.train_file, launch.file.cache_dir);
  options.name = launch.file.train_name;
  options.stamp = launch.file.train_stamp;
  constexpr int kAnyLength = 1 << 30;
  options.sequence_length = kAnyLength;
  options.threads = launch.file.threads_per_rank;
  return options;
}

EvaluationTask::EvaluationTask(const Launch& launch)
    : options_(OptionsFor(launch)),
      grader_(MakeGrader(launch.spec.evaluate)),
      tokenizer_(OpenTokenizer(options_)),
      model_name_(launch.spec.job.model),
      adapter_name_(launch.spec.job.adapter),
      graders_json_(launch.spec.evaluate.grader),
      grading_{.graders = GradersOf(launch),
               .roots = launch.file.grader_roots,
               .folder = launch.file.attempt_dir + "/grading",
               .judge_socket = launch.file.judge_socket,
               .threads = std::min(launch.file.threads_per_rank, kMostPrograms),
               .judge_threads = std::max(1, kJudgesAsked / launch.file.world_size)} {
  CheckOptions(options_);
  const engine::PrepareOptions rows = HeldOutRows(launch);
  file_ = rows.Name();
  rows_ = engine::PrepareDataset(tokenizer_, rows).dataset;
  for (int64_t i = 0; i < rows_->size(); ++i) {
    const engine::Document document = rows_->Get(i);
    if (auto question = engine::QuestionOf(document, tokenizer_)) {
      questions_.push_back({document, *std::move(question)});
    } else {
      ++without_question_;
    }
  }
  if (questions_.empty()) {
    throw engine::UserError(
        fmt::format("{}: no row has a question and its answer", file_), "bad_rows",
        "evaluation asks what stands before a row's last answer: give rows of messages, or of a "
        "prompt and a completion");
  }
  CheckBudgets();
}

void EvaluationTask::CheckBudgets() const {
  const int64_t sides = options_.adapter.empty() ? 1 : 2, calls = sides * lines();
  for (const spec::Grader& grader : grading_.graders) {
    if (grader.type != spec::Grader::Type::kJudge || calls <= grader.max_calls) continue;
    throw engine::UserError(
        fmt::format("evaluate.grader {}: {} answers are to be graded, and max_calls is {}",
                    grader.name, calls, grader.max_calls),
        "bad_grader", "raise max_calls, or give fewer rows with data.max_examples");
  }
}

void EvaluationTask::CheckLengths(int64_t positions) const {
  for (int64_t i = 0; i < lines(); ++i) {
    const Row& row = questions_[static_cast<size_t>(i)];
    const auto prompt = static_cast<int64_t>(row.question.prompt.size());
    const auto reference = static_cast<int64_t>(row.document.tokens.size()) - prompt;
    try {
      CheckPositions(prompt, options_.max_new_tokens, positions);
      if (positions > 0 && prompt + reference > positions) {
        throw engine::UserError(
            fmt::format("the question's {} tokens and its answer's {} are more than the model's {} "
                        "positions",
                        prompt, reference, positions),
            "bad_prompt", "leave this row out, or shorten it");
      }
    } catch (const engine::UserError& error) {
      throw engine::UserError(fmt::format("{}: {}", PlaceOf(i), error.what()), "bad_prompt",
                              error.advice());
    }
  }
}

std::string EvaluationTask::Identity(int ranks) const {
  io::Sha256 rows;
  for (const Row& row : questions_) {
    const auto& tokens = row.document.tokens;
    rows.Update({reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()});
    rows.Update(fmt::format("{} {}\n", tokens.size(), row.question.prompt.size()));
  }
  std::vector<std::string_view> metrics;
  for (const grade::Metric* metric : grader_.metrics()) metrics.push_back(metric->name);
  LineJson run = nlohmann::ordered_json::parse(RunOf(options_, {}, ranks));
  run["rows"] = questions_.size();
  run["held-out rows"] = rows.FinishHex();
  run["metrics"] = metrics;
  if (!graders_json_.empty()) run["graders"] = graders_json_;
  return DumpJson(run, 2) + "\n";
}

std::string EvaluationTask::PlaceOf(int64_t number) const {
  return fmt::format("{}:{}", file_, questions_[static_cast<size_t>(number)].question.line);
}

engine::GenerationRequest EvaluationTask::QuestionOf(const Row& row, int64_t number) const {
  engine::GenerationRequest request;
  request.prompt.assign(row.question.prompt.begin(), row.question.prompt.end());
  request.max_new_tokens = options_.max_new_tokens;
  request.sampling = options_.sampling;
  request.sampling.seed = engine::MixSeed(options_.sampling.seed, static_cast<uint64_t>(number));
  request.beams = options_.beams;
  request.stop_ids = tokenizer_.stop_ids();
  request.stop_strings = options_.stop;
  if (!options_.stop.empty()) {
    request.decode = [this](std::span<const int32_t> ids) { return tokenizer_.DecodeAnswer(ids); };
  }
  return request;
}

void EvaluationTask::Ask(int64_t number, size_t side) {
  const Row& row = questions_[static_cast<size_t>(number)];
  const bool adapted = side == 1 || options_.adapter.empty();
  const auto add = [&](engine::GenerationRequest request, bool answers) {
    request.adapter = adapted || base_first_;
    try {
      batch_->Add(std::move(request));
    } catch (const engine::UserError& error) {
      throw engine::UserError(fmt::format("{}: {}", PlaceOf(number), error.what()), "bad_prompt",
                              error.advice());
    }
    asked_.push_back({number, side, answers});
    ++pending_[number].missing;
  };
  engine::GenerationRequest reference;
  reference.prompt.assign(row.document.tokens.begin(), row.document.tokens.end());
  reference.max_new_tokens = 0;
  reference.prompt_scores = true;
  add(QuestionOf(row, number), true);
  add(std::move(reference), false);
}

void EvaluationTask::Load(const std::string& adapter, const std::vector<size_t>& sides) {
  int64_t longest = 0;
  for (int64_t i = first_; i < last_; ++i) {
    const Row& row = questions_[static_cast<size_t>(i)];
    longest =
        std::max({longest, static_cast<int64_t>(row.document.tokens.size()),
                  engine::BatchGenerator::TokensOf(static_cast<int64_t>(row.question.prompt.size()),
                                                   options_.max_new_tokens, options_.beams.beams)});
  }
  batch_.reset();
  generator_.reset();  // before the next is loaded
  generator_ = std::make_unique<engine::Generator>(ModelOf(options_, adapter, *device_));
  base_first_ = sides.size() == 2 && !generator_->optional_adapters();
  if (base_first_) return Load("", {0});
  base_first_ = sides.size() == 1 && sides[0] == 0 && !options_.adapter.empty();
  const int64_t requests = 2 * static_cast<int64_t>(sides.size()) * (last_ - first_);
  const int64_t at_once = std::min<int64_t>(options_.most_requests, requests);
  batch_ = generator_->MakeBatch(
      {.cache_tokens = CacheTokens(at_once, longest, CacheRoomOf(options_, *generator_, *device_),
                                   options_.beams.beams),
       .most_requests = RowsAtOnce(options_, requests)});
  asked_.clear();
  for (int64_t i = first_; i < last_; ++i) {
    for (const size_t side : sides) Ask(i, side);
  }
}

void EvaluationTask::Open(int64_t first, int64_t last, const Device& device) {
  next_ = first_ = first;
  last_ = last;
  device_.emplace(device);
  pending_.clear();
  if (first == last) return;
  if (!grading_.graders.empty()) {
    grading::AnswerGraders::Options grading = grading_;
    grading.folder += fmt::format("/{}", first);
    graders_ = std::make_unique<grading::AnswerGraders>(std::move(grading));
  }
  const size_t sides = options_.adapter.empty() ? 1 : 2;
  for (int64_t i = first; i < last; ++i) pending_[i].sides.resize(sides);
  Load(options_.adapter, sides == 1 ? std::vector<size_t>{0} : std::vector<size_t>{0, 1});
}

void EvaluationTask::Keep(const engine::GenerationAnswer& made) {
  const Asked& asked = asked_[static_cast<size_t>(made.request)];
  Pending& pending = pending_.at(asked.number);
  RowResult& result = pending.sides[asked.side];
  --pending.missing;
  if (asked.answers) {
    result.answer.text = tokenizer_.DecodeAnswer(made.tokens);
    if (made.reason == engine::EndReason::kStopString) result.answer.text.resize(made.text_bytes);
    // What is graded is what the line says: an answer may end within a character.
    result.answer.text = ToUtf8(result.answer.text);
    result.answer.tokens = made.tokens.size();
    result.answer.finish_reason = FinishReason(made);
    result.answer.error = made.problem;
    if (pending.missing == 0) AskGraders(asked.number, pending);
    return;
  }
  const auto& loss = questions_[static_cast<size_t>(asked.number)].document.loss;
  for (size_t i = 1; i < loss.size(); ++i) {
    if (loss[i] != 0) result.nll -= made.prompt_scores[i - 1].log_probability;
  }
  if (pending.missing == 0) AskGraders(asked.number, pending);
}

void EvaluationTask::AskGraders(int64_t number, const Pending& pending) {
  // With both sides still to come the row is not whole.
  if (graders_ == nullptr || base_first_) return;
  const Row& row = questions_[static_cast<size_t>(number)];
  std::vector<grading::Sample> samples;
  for (const RowResult& side : pending.sides) {
    samples.push_back({.line = row.question.line,
                       .prompt = tokenizer_.DecodeText(row.question.prompt),
                       .reference = row.question.reference,
                       .answer = side.answer.text,
                       .finish_reason = side.answer.finish_reason});
  }
  graders_->Add(number, std::move(samples));
}

void EvaluationTask::Give(const Take& take) {
  for (auto found = pending_.find(next_); found != pending_.end() && found->second.missing == 0;
       found = pending_.find(++next_)) {
    Verdicts verdicts(found->second.sides.size());
    if (graders_ != nullptr) {
      std::optional<Verdicts> given = graders_->Take(next_);
      if (!given) return;
      verdicts = *std::move(given);
    }
    take(LineOf(next_, found->second.sides, verdicts));
    pending_.erase(found);
  }
}

bool EvaluationTask::Step(const Take& take) {
  if (next_ == last_) return false;
  const bool answered = batch_->idle();
  for (const engine::GenerationAnswer& made : batch_->Step()) Keep(made);
  if (base_first_) {
    if (batch_->idle()) Load(options_.adapter, {1});
    return true;
  }
  if (answered && graders_ != nullptr) graders_->Wait(kGraderPatience);
  Give(take);
  return next_ < last_;
}

std::string EvaluationTask::LineOf(int64_t number, const std::vector<RowResult>& sides,
                                   const Verdicts& verdicts) const {
  const Row& row = questions_[static_cast<size_t>(number)];
  const engine::LearntText learnt = engine::LearntTextOf(row.document, tokenizer_);
  LineJson line = {{"line", row.question.line},
                   {"prompt", tokenizer_.DecodeText(row.question.prompt)},
                   {"reference", row.question.reference},
                   {"reference_tokens", learnt.tokens},
                   {"reference_bytes", learnt.bytes}};
  size_t tokens = 0;
  for (size_t i = 0; i < sides.size(); ++i) {
    LineJson& side = line[kSides[i]];
    side = ResultJson(sides[i], grader_, row.question.reference);
    AddVerdicts(grading_.graders, verdicts[i], side);
    tokens += sides[i].answer.tokens;
    if (!sides[i].answer.error.empty() && !line.contains("error")) {
      line["error"] = fmt::format("{}: {}", kSides[i], sides[i].answer.error);
    }
  }
  line["answer_tokens"] = tokens;
  return DumpJson(line);
}

std::string EvaluationTask::Deliver(const std::string& all_lines, const std::string& folder) {
  ThrowIfError(CopyFile(all_lines, folder + "/scores.jsonl"));
  std::vector<std::string> names;
  for (const spec::Grader& grader : grading_.graders) names.push_back(grader.name);
  const auto report = MakeReport(all_lines, grader_,
                                 {.graders = names,
                                  .model = model_name_,
                                  .adapter = adapter_name_,
                                  .data = file_,
                                  .without_question = without_question_});
  ThrowIfError(report.status());
  ThrowIfError(io::WriteFileAtomic(folder + "/evaluation.json", DumpJson(*report, 2) + "\n"));
  return "evaluation";
}

}  // namespace sft::rank
