#include "worker/rank/answer_job.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>

#include "common/base/bytes.h"
#include "common/base/duration.h"
#include "common/base/env.h"
#include "worker/engine/base/error.h"
#include "worker/engine/model/config.h"
#include "worker/engine/model/families.h"
#include "worker/engine/train/base_weights.h"
#include "worker/rank/evaluation_task.h"
#include "worker/rank/group_variables.h"
#include "worker/rank/meeting_place.h"
#include "worker/rank/prompt_rows.h"
#include "worker/rank/prompt_task.h"
#include "worker/rank/stop_signal.h"
#include "worker/rank/template_report.h"

namespace sft::rank {
namespace {

constexpr Nanos kTellInterval = std::chrono::seconds(1);
constexpr Nanos kOthersInterval = std::chrono::milliseconds(100);
constexpr Nanos kExchangeInterval = std::chrono::milliseconds(500);
constexpr Nanos kLeavePatience = std::chrono::seconds(10);

std::unique_ptr<RowTask> TaskOf(const Launch& launch) {
  if (launch.spec.evaluates()) return std::make_unique<EvaluationTask>(launch);
  return std::make_unique<PromptTask>(launch);
}

engine::BeamStop StopOf(spec::EarlyStopping early) {
  switch (early) {
    case spec::EarlyStopping::kNo:
      return engine::BeamStop::kNo;
    case spec::EarlyStopping::kYes:
      return engine::BeamStop::kYes;
    case spec::EarlyStopping::kNever:
      return engine::BeamStop::kNever;
  }
  throw engine::InternalError("unknown early_stopping");
}

}  // namespace

AnswerOptions OptionsFor(const Launch& launch) {
  const spec::JobSpec::Generate& g = launch.spec.generate;
  return {.model = launch.file.model_dir,
          .adapter = launch.file.adapter_dir,
          .chat_template = launch.spec.data.chat_template,
          .settings = engine::TemplateSettings::OfJob(launch.spec),
          .max_new_tokens = g.max_new_tokens,
          .sampling = {.temperature = g.temperature,
                       .top_k = g.top_k,
                       .top_p = g.top_p,
                       .min_p = g.min_p,
                       .repetition_penalty = g.repetition_penalty,
                       .frequency_penalty = g.frequency_penalty,
                       .presence_penalty = g.presence_penalty,
                       .no_repeat_ngram = g.no_repeat_ngram,
                       .min_new_tokens = g.min_new_tokens,
                       .seed = g.seed},
          .beams = {.beams = g.num_beams,
                    .answers = g.num_samples,
                    .length_penalty = g.length_penalty,
                    .stop = StopOf(g.early_stopping)},
          .stop = g.stop,
          .most_requests = g.batch,
          .samples = g.num_samples,
          .nf4 = g.nf4,
          .memory_budget_gb = launch.spec.compute.memory_budget_gb,
          .processes = launch.file.local_ranks};
}

void LimitMemory(const spec::JobSpec& spec, const Device& device) {
  const double budget = spec.compute.memory_budget_gb;
  if (device.cuda == nullptr || budget <= 0) return;
  device.cuda->devices->LimitMemory(device.torch.index(), static_cast<int64_t>(budget * 1e9));
}

// Only a hang of it would be named less well without a record.
std::optional<channel::FlightRecorder> OpenFlightRecord(const channel::RankLaunch& file, int rank,
                                                        Clock& clock) {
  auto flight = channel::FlightRecorder::Create(channel::FlightPath(file.attempt_dir, rank), rank,
                                                file.world_size, clock);
  if (flight.ok()) return *std::move(flight);
  fmt::print(stderr, "no flight record: {}\n", Message(flight.status()));
  return std::nullopt;
}

CheckedModel CheckAnswering(const Launch& launch) {
  CheckOptions(OptionsFor(launch));
  const auto config = engine::ReadConfig(launch.file.model_dir);
  const engine::BaseWeights base(launch.file.model_dir, engine::MakeLayout(config), at::kCPU);
  fmt::print("model {}: {} of weights\n", launch.file.model_dir,
             BytesText(static_cast<int64_t>(base.files().TotalBytes())));
  return {config.max_positions, config.vocab};
}

void PrepareAnswers(const Launch& launch, EventLog& events) {
  const AnswerOptions options = OptionsFor(launch);
  const int64_t positions = CheckAnswering(launch).positions;
  const engine::ChatTokenizer tokenizer = OpenTokenizer(options);
  TellTemplate(launch.spec, tokenizer, events);
  if (launch.spec.serves()) return;
  const Prompts prompts = ReadPrompts(launch);
  channel::PreparedEvent prepared{.rows = static_cast<int64_t>(prompts.rows.size())};
  size_t longest = 0;
  for (const data::PromptRow& row : prompts.rows) {
    try {
      const size_t tokens = EncodeRow(tokenizer, row).size();
      CheckPositions(static_cast<int64_t>(tokens), options.max_new_tokens, positions);
      longest = std::max(longest, tokens);
      prepared.tokens += static_cast<int64_t>(tokens);
    } catch (const engine::UserError& error) {
      throw engine::UserError(fmt::format("{}: {}", PlaceOf(prompts.file, row), error.what()),
                              "bad_prompt", error.advice());
    }
  }
  prepared.used = prepared.rows;
  fmt::print("{}: {} prompts, {} tokens, the longest has {}\n", prompts.file, prepared.rows,
             prepared.tokens, longest);
  events.Write(prepared);
  events.Sync();
}

AnswerJob::AnswerJob(const Context& context)
    : context_(context),
      task_(TaskOf(context.launch)),
      share_{context.rank, context.launch.file.world_size, task_->lines()},
      out_(context.launch.file.checkpoint_dir + "/answers/answers.jsonl"),
      count_(out_, share_) {}

bool AnswerJob::Stopped() {
  context_.commands.Poll();
  const std::string& reason = context_.commands.stop_reason();
  if (reason.empty() && !StopSignalled()) return false;
  fmt::print("stopped: {}\n", reason.empty() ? "SIGTERM" : reason);
  return true;
}

void AnswerJob::Enter(channel::FlightPhase phase) {
  if (flight_) flight_->SetPhase(phase);
}

void AnswerJob::TellReady(const Device& device) {
  const double seconds = SecondsOf(context_.clock.Mono() - context_.process_start);
  const int world = context_.launch.file.world_size;
  fmt::print("rank {} of world size {} on {}: answers {} to {} of {}, ready after {:.1f} s\n",
             context_.rank, world, device.Name(), share_.begin() + 1, share_.end(), share_.rows,
             seconds);
  context_.events.Write(channel::ReadyEvent{.rank = context_.rank,
                                            .world = world,
                                            .device = device.Name(),
                                            .total_steps = share_.rows,
                                            .seconds = seconds});
}

void AnswerJob::TellProgress(bool now) {
  if (context_.rank != 0) return;
  const MonoTime time = context_.clock.Mono();
  if (!now && time - looked_at_ < kTellInterval) return;
  looked_at_ = time;
  const absl::StatusOr<AnswerCount::Sums> sums = count_.Look();
  ThrowIfError(sums.status());
  if (began_.at == MonoTime{}) began_ = told_ = {time, *sums};
  const bool news = sums->answers > told_.sums.answers;
  if (!news && (!now || sums->answers == 0)) return;
  const double seconds = SecondsOf(time - told_.at);
  const int64_t tokens = sums->tokens - told_.sums.tokens;
  const int64_t made = sums->answers - began_.sums.answers;
  told_ = {time, *sums};
  const channel::AnswersEvent event{
      .answers = sums->answers,
      .total = share_.rows,
      .tokens = tokens,
      .tokens_per_second = seconds > 0 ? static_cast<double>(tokens) / seconds : 0,
      .seconds = made > 0 ? SecondsOf(time - began_.at) / static_cast<double>(made) : 0};
  fmt::print("{} of {} answers, {:.0f} tokens/s\n", event.answers, event.total,
             event.tokens_per_second);
  context_.events.Write(event);
}

bool AnswerJob::AnswerShare(AnswerPart& part, const Device& device) {
  if (part.answered() > 0) {
    fmt::print("{} of {} answers are there already\n", part.answered(), share_.size());
  }
  if (part.answered() == share_.size()) return true;
  task_->Open(share_.begin() + part.answered(), share_.end(), device);
  TellReady(device);
  TellProgress(/*now=*/true);
  bool more = true;
  while (more) {
    if (Stopped()) {
      ThrowIfError(part.Sync());
      return false;
    }
    more = task_->Step([&](const std::string& line) {
      ThrowIfError(part.Append(line));
      if (sender_) sender_->Add(line);
    });
    Enter(channel::FlightPhase::kTraining);
    Exchange();
    TellProgress(/*now=*/false);
  }
  return true;
}

bool AnswerJob::AwaitOthers(AnswerPart& part) {
  while (!io::Exists(out_)) {
    if (Stopped()) return false;
    TellProgress(/*now=*/false);
    context_.clock.Sleep(kOthersInterval);
    const bool were = received_;
    Exchange();
    // What hangs on another node is seen there; beside this process, here.
    if (!received_) Enter(channel::FlightPhase::kTraining);
    // Parts of other nodes end here, without a process of their own that would join them.
    if (receiver_ && received_ && !were) ThrowIfError(part.Finish().status());
  }
  return true;
}

bool AnswerJob::AwaitNodes(const std::function<bool()>& done) {
  while (!done()) {
    if (Stopped()) return false;
    context_.clock.Sleep(kOthersInterval);
  }
  return true;
}

bool AnswerJob::MeetNodes(AnswerPart& part) {
  const channel::RankLaunch& file = context_.launch.file;
  if (file.local_ranks == file.world_size) return true;
  meeting_.emplace(MeetingPlace(file, context_.rank, context_.launch.spec));
  c10d::Store& store = *meeting_->store();
  const std::string run = task_->Identity(share_.ranks);
  if (context_.rank == 0) {
    receiver_.emplace(store, out_, share_, file.local_ranks, run, file.attempt_uid);
    received_ = false;
    return AwaitNodes([&] { return receiver_->Meet(); });
  }
  if (file.first_rank == 0) {  // beside rank 0
    SayGoodbye(store, context_.rank);
    return true;
  }
  sender_.emplace(store, out_, share_, run);
  return AwaitNodes([&] { return sender_->Meet(part); });
}

void AnswerJob::Exchange() {
  const MonoTime now = context_.clock.Mono();
  if ((!sender_ && !receiver_) || now - exchanged_at_ < kExchangeInterval) return;
  exchanged_at_ = now;
  if (sender_) sender_->Send();
  if (receiver_) received_ = receiver_->Receive();
}

bool AnswerJob::LeaveNodes() {
  if (receiver_) {
    // All is delivered: whoever is slower than that, or told to stop, changes nothing.
    const MonoTime until = context_.clock.Mono() + kLeavePatience;
    AwaitNodes([&] { return receiver_->AllLeft() || context_.clock.Mono() >= until; });
    return true;
  }
  if (!sender_) return true;
  sender_->Send();
  if (!AwaitNodes([&] { return sender_->AllTaken(); })) return false;
  SayGoodbye(*meeting_->store(), context_.rank);
  return true;
}

void AnswerJob::Deliver() {
  Enter(channel::FlightPhase::kDelivering);
  const absl::StatusOr<AnswerCount::Sums> sums = count_.Look();
  ThrowIfError(sums.status());
  if (sums->answers != share_.rows) {
    throw engine::InternalError(
        fmt::format("{} holds {} answers to {} prompts", out_, sums->answers, share_.rows));
  }
  TellProgress(/*now=*/true);
  if (sums->errors > 0) {
    const std::string warning =
        fmt::format("{} of {} answers hold an error (\"error\" in their lines), the first is to {}",
                    sums->errors, sums->answers, task_->PlaceOf(sums->first_error));
    fmt::print("{}\n", warning);
    context_.events.Write(channel::WarningEvent{.message = warning});
  }
  const std::string& folder = context_.launch.file.output_dir;
  const std::string kind = task_->Deliver(out_, folder);
  int64_t bytes = 0;
  const auto files = io::ListDir(folder);
  ThrowIfError(files.status());
  for (const std::string& name : *files) {
    const auto size = io::FileSize(folder + "/" + name);
    ThrowIfError(size.status());
    bytes += *size;
  }
  fmt::print("{} answers with {} tokens: {}\n", sums->answers, sums->tokens, folder);
  context_.events.Write(channel::ArtifactEvent{.kind = kind, .path = folder, .bytes = bytes});
  context_.events.Sync();
}

channel::ExitCode AnswerJob::Run() {
  const channel::RankLaunch& file = context_.launch.file;
  // First of all: nothing may ask LibTorch for a GPU before the plugin is open.
  const Device device = OpenDevice(file.device, LocalRank(context_.rank, file, GetEnv));
  if (auto flight = OpenFlightRecord(file, context_.rank, context_.clock)) {
    flight_.emplace(*std::move(flight));
  }
  Enter(channel::FlightPhase::kLoading);
  at::set_num_threads(file.threads_per_rank);
  at::set_num_interop_threads(1);
  LimitMemory(context_.launch.spec, device);
  ThrowIfError(io::MakeDirs(file.checkpoint_dir + "/answers"));
  auto part = AnswerPart::Open(out_, share_, task_->Identity(share_.ranks));
  if (absl::IsAlreadyExists(part.status())) {
    throw engine::UserError(
        fmt::format("the answers so far are not of this run: {}", Message(part.status())),
        "answers_of_another_run", "submit the job again: it begins with the first row");
  }
  ThrowIfError(part.status());
  if (!MeetNodes(*part)) return channel::kExitStopped;
  const bool all_joined = sender_ && sender_->all_joined();
  if (!all_joined && !AnswerShare(*part, device)) return channel::kExitStopped;
  // The parts of another node than rank 0's are not joined there.
  const bool joins = !sender_ || sender_->shared();
  ThrowIfError(joins ? part->Finish().status() : part->Sync());
  fmt::print("all {} answers of rank {} are there\n", share_.size(), context_.rank);
  if (context_.rank == 0) {
    if (!AwaitOthers(*part)) return channel::kExitStopped;
    Deliver();
  }
  if (!LeaveNodes()) return channel::kExitStopped;
  Enter(channel::FlightPhase::kEnding);
  context_.events.Sync();
  return channel::kExitOk;
}

}  // namespace sft::rank
