#include "worker/rank/train.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/duration.h"
#include "common/base/env.h"
#include "common/io/file.h"
#include "common/io/model_folder.h"
#include "common/io/sha256.h"
#include "common/spec/mixture.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/safetensors_writer.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/files.h"
#include "worker/engine/data/question.h"
#include "worker/engine/dist/recorded.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/train/memory_stats.h"
#include "worker/rank/build.h"
#include "worker/rank/ceiling.h"
#include "worker/rank/device.h"
#include "worker/rank/group_variables.h"
#include "worker/rank/meeting_place.h"
#include "worker/rank/model_card.h"
#include "worker/rank/plan_report.h"
#include "worker/rank/planning.h"
#include "worker/rank/preflight.h"
#include "worker/rank/step_profile.h"
#include "worker/rank/stop_signal.h"
#include "worker/rank/validation_answers.h"

namespace sft::rank {
namespace {

// Why the run has to end, "" when it has not.
std::string StopReason(CommandInput& commands) {
  commands.Poll();
  if (!commands.stop_reason().empty()) return commands.stop_reason();
  return StopSignalled() ? "SIGTERM" : "";
}

std::vector<channel::PreferenceFigures> FiguresOf(
    const std::optional<engine::PreferenceReport>& report) {
  if (!report) return {};
  return {{.rewards_chosen = report->rewards_chosen,
           .rewards_rejected = report->rewards_rejected,
           .rewards_accuracies = report->rewards_accuracies,
           .logps_chosen = report->logps_chosen,
           .logps_rejected = report->logps_rejected,
           .kl = report->kl}};
}

// " margin 0.12 (chosen 0.1, rejected -0.02) accuracy 63 %" behind a loss.
std::string PreferenceText(const std::optional<engine::PreferenceReport>& report) {
  if (!report) return "";
  return fmt::format(" margin {:.4f} (chosen {:.4f}, rejected {:.4f}) accuracy {:.0f} %",
                     report->rewards_margins, report->rewards_chosen, report->rewards_rejected,
                     100 * report->rewards_accuracies);
}

// " comm shard 12.0 % at 3.1 GB/s": behind a step, of the step before.
std::string TrafficText(const std::vector<channel::AxisTraffic>& traffic) {
  std::string text;
  for (const channel::AxisTraffic& each : traffic) {
    text += fmt::format("{} {} {:.1f} % at {:.3g} GB/s", text.empty() ? " comm" : ",", each.axis,
                        100 * each.exposed_share, each.gigabytes_per_second);
  }
  return text;
}

// Turns the engine's reports into events for the worker and lines of the log.
class EventObserver : public engine::TrainObserver {
 public:
  // `flight` and `traffic` may be null.
  EventObserver(const TrainContext& context, const Device& device, channel::FlightRecorder* flight,
                engine::TrafficMeter* traffic)
      : context_(context),
        gpu_(device),
        device_(device.Name()),
        profile_({.rank = context.rank,
                  .device = device_,
                  .gpu = device.cuda != nullptr,
                  .synchronize = [this] { gpu_.cuda->devices->Synchronize(gpu_.torch.index()); },
                  .attempt_dir = context.launch.file.attempt_dir,
                  .file = context.profile},
                 context.clock),
        flight_(flight),
        traffic_(traffic) {}

  // What the card of the result says, as far as it is known beforehand.
  void SetFacts(TrainingFacts facts) { facts_ = std::move(facts); }

  // To be called before the first step.
  void SetPlan(RankPlan plan) { plan_ = std::move(plan); }

  void OnPhase(engine::TrainPhase phase, int64_t step) override {
    Profile(phase);
    if (traffic_ != nullptr && phase == engine::TrainPhase::kStep) traffic_->BeginStep();
    if (traffic_ != nullptr && phase == engine::TrainPhase::kStepDone) traffic_->EndStep();
    if (flight_ != nullptr) Note(phase, step, *flight_);
  }

  void OnProgress(std::string_view phase, int64_t done, int64_t total) override {
    if (context_.rank != 0) return;
    const MonoTime now = context_.clock.Mono();
    if (last_progress_ && now - *last_progress_ < kProgressInterval) return;
    last_progress_ = now;
    context_.events.Write(
        channel::ProgressEvent{.phase = std::string(phase), .done = done, .total = total});
  }

  void OnReady(const engine::ReadyReport& report) override {
    if (flight_ != nullptr) flight_->SetTotalSteps(report.total_steps);
    const double seconds = SecondsOf(context_.clock.Mono() - context_.process_start);
    const int world = context_.launch.file.world_size;
    fmt::print(
        "rank {} of world size {} on {}: {} trainable of {} parameters, {} steps, ready after "
        "{:.1f} s\n",
        context_.rank, world, device_, report.trainable_parameters, report.total_parameters,
        report.total_steps, seconds);
    context_.events.Write(channel::ReadyEvent{.rank = context_.rank,
                                              .world = world,
                                              .device = device_,
                                              .total_steps = report.total_steps,
                                              .trainable_parameters = report.trainable_parameters,
                                              .total_parameters = report.total_parameters,
                                              .seconds = seconds});
  }

  void OnStep(const engine::StepReport& report) override {
    std::string line =
        fmt::format("step {}/{} loss {:.6f}{} grad_norm {:.4f} lr {:.3e} tokens {} {:.0f} tokens/s",
                    report.step, report.total_steps, report.loss, PreferenceText(report.preference),
                    report.grad_norm, report.lr, report.tokens, report.tokens_per_second);
    if (report.mfu > 0) line += fmt::format(" MFU {:.1f} %", 100 * report.mfu);
    if (report.of_limit > 0) line += fmt::format(" {:.0f} % of the limit", 100 * report.of_limit);
    const std::vector<channel::AxisTraffic> traffic = LastTraffic();
    line += TrafficText(traffic);
    fmt::print("{}\n", line);
    context_.events.Write(channel::StepEvent{.step = report.step,
                                             .total_steps = report.total_steps,
                                             .loss = report.loss,
                                             .lr = report.lr,
                                             .grad_norm = report.grad_norm,
                                             .tokens = report.tokens,
                                             .tokens_per_second = report.tokens_per_second,
                                             .seconds = report.seconds,
                                             .gpu_memory_bytes = report.memory_bytes,
                                             .mfu = report.mfu,
                                             .of_limit = report.of_limit,
                                             .epoch = report.epoch,
                                             .preference = FiguresOf(report.preference),
                                             .traffic = traffic,
                                             .rank_loss = report.rank_loss});
    facts_.losses.emplace_back(report.step, report.loss);
    const int64_t made = report.step - resumed_step_;
    if (plan_ && made >= kSettled) ReportPlan(report.tokens_per_second);
  }

  void OnEval(const engine::EvalReport& report) override {
    facts_.validations.emplace_back(report.step, report.loss);
    fmt::print("validation after step {}: loss {:.6f}{} over {} tokens in {:.1f} s\n", report.step,
               report.loss, PreferenceText(report.preference), report.tokens, report.seconds);
    channel::EvalEvent event{.step = report.step,
                             .loss = report.loss,
                             .tokens = report.tokens,
                             .seconds = report.seconds,
                             .answered_rows = report.answered_rows,
                             .preference = FiguresOf(report.preference)};
    std::string text;
    for (const engine::ValidationMetric& metric : report.metrics) {
      event.metrics.push_back({metric.name, metric.value});
      text += fmt::format("{}{} {:.4f}", text.empty() ? "" : ", ", metric.name, metric.value);
    }
    for (const engine::ValidationMetric& metric : report.of_loss) {
      event.metrics.push_back({metric.name, metric.value});
    }
    context_.events.Write(event);
    if (!report.note.empty()) {
      fmt::print("{}\n", report.note);
      context_.events.Write(
          channel::WarningEvent{.message = fmt::format("rank {}: {}", context_.rank, report.note)});
    }
    if (report.answered_rows == 0) return;
    fmt::print("{} over {} answers\n", text, report.answered_rows);
    if (context_.rank != 0) return;
    context_.events.Write(channel::WarningEvent{
        .message = fmt::format("after step {}: {} over {} answers, val.loss {:.4f}", report.step,
                               text, report.answered_rows, report.loss),
        .kind = "validation"});
  }

  void OnConsistency(const engine::ConsistencyReport& report) override {
    fmt::print("trained weights {} {}\n", report.weights_sha256,
               report.consistent ? "are the same on all ranks and in the delivered files"
                                 : "DIFFER between ranks or from the delivered files");
    if (context_.rank == 0 && report.consistent) {
      fmt::print(
          "logits of the files read back differ from the trained model's by at most {:.2g} of the "
          "largest; that took {:.2f} s, the packed documents {:.2f} s\n",
          report.delivered_difference, report.delivered_seconds, report.packing_seconds);
    }
    facts_.checks = {report.packing_difference, report.delivered_difference};
    context_.events.Write(
        channel::ConsistencyEvent{.rank = context_.rank,
                                  .weights_sha256 = report.weights_sha256,
                                  .delivered_sha256 = report.delivered_sha256,
                                  .consistent = report.consistent,
                                  .packing_difference = report.packing_difference,
                                  .delivered_difference = report.delivered_difference,
                                  .packing_seconds = report.packing_seconds,
                                  .delivered_seconds = report.delivered_seconds});
  }

  void OnArtifact(const engine::ArtifactReport& report) override {
    facts_.seconds = SecondsOf(context_.clock.Mono() - context_.process_start);
    const std::string card = TrainingCard(facts_, context_.launch.spec);
    engine::WriteTextFile(report.path + "/" + std::string(io::kModelCard), card);
    const int64_t bytes = report.bytes + static_cast<int64_t>(card.size());
    fmt::print("wrote the {} ({} bytes) to {} in {:.1f} s\n", report.kind, bytes, report.path,
               report.seconds);
    context_.events.Write(
        channel::ArtifactEvent{.kind = report.kind, .path = report.path, .bytes = bytes});
    context_.events.Sync();
  }

  void OnResumed(const engine::ResumedReport& report) override {
    resumed_step_ = report.step;
    facts_.first_step = report.step + 1;
    fmt::print("goes on after step {} from {}: verified in {:.1f} s, restored in {:.1f} s\n",
               report.step, report.path, report.verify_seconds, report.restore_seconds);
    for (const std::string& change : report.changes) fmt::print("accepted: {}\n", change);
    context_.events.Write(
        channel::ResumedEvent{.step = report.step, .path = report.path, .changes = report.changes});
  }

  void OnCheckpoint(const engine::CheckpointReport& report) override {
    fmt::print(
        "checkpoint of step {} ({}): {} bytes in {:.1f} s, of which training waited {:.2f} s: {}\n",
        report.step, report.reason, report.bytes, report.seconds, report.stall_seconds,
        report.path);
    context_.events.Write(channel::CheckpointEvent{.step = report.step,
                                                   .path = report.path,
                                                   .bytes = report.bytes,
                                                   .reason = report.reason,
                                                   .seconds = report.seconds,
                                                   .stall_seconds = report.stall_seconds,
                                                   .metric = report.metric.value_or(0),
                                                   .has_metric = report.metric.has_value(),
                                                   .best = report.best});
    context_.events.Sync();
  }

  void OnMessage(std::string_view message) override { fmt::print("{}\n", message); }

  void OnWarning(std::string_view message) override {
    fmt::print("warning: {}\n", message);
    context_.events.Write(channel::WarningEvent{.message = std::string(message)});
  }

  bool StopRequested() override { return !StopReason(context_.commands).empty(); }

  bool CheckpointRequested() override {
    context_.commands.Poll();
    return context_.commands.TakeCheckpoint();
  }

 private:
  // The step of this process that has seen all that the allocator will hold.
  static constexpr int64_t kSettled = 2;
  static constexpr std::chrono::seconds kProgressInterval{2};

  void Profile(engine::TrainPhase phase) {
    if (phase == engine::TrainPhase::kStep || phase == engine::TrainPhase::kDelivery) {
      context_.commands.Poll();
      if (const auto command = context_.commands.TakeProfile()) profile_.Ask(*command);
    }
    profile_.OnPhase(phase);
  }

  void Note(engine::TrainPhase phase, int64_t step, channel::FlightRecorder& flight) const {
    switch (phase) {
      case engine::TrainPhase::kStep:
        return flight.BeginStep(step);
      case engine::TrainPhase::kOwnWorkDone:
        return flight.EndOwnWork(/*all_finished=*/gpu_.cuda != nullptr);
      case engine::TrainPhase::kStepDone:
        return flight.EndStep();
      case engine::TrainPhase::kValidation:
        return flight.SetPhase(channel::FlightPhase::kValidating);
      case engine::TrainPhase::kCheckpoint:
        return flight.SetPhase(channel::FlightPhase::kCheckpointing);
      case engine::TrainPhase::kDelivery:
        return flight.SetPhase(channel::FlightPhase::kDelivering);
    }
  }

  // Of the step before.
  std::vector<channel::AxisTraffic> LastTraffic() {
    std::vector<channel::AxisTraffic> result;
    if (traffic_ == nullptr) return result;
    for (const engine::AxisTraffic& each : traffic_->LastStep()) {
      result.push_back({each.axis, each.exposed_share, each.gigabytes_per_second});
    }
    return result;
  }

  void ReportPlan(double tokens_per_second) {
    const int index = gpu_.torch.index();
    const engine::CudaMemory memory = gpu_.cuda->devices->Memory(index);
    const engine::CudaDriverMemory driver = gpu_.cuda->devices->DriverMemory(index);
    const Measured measured{.resident_bytes = memory.allocated,
                            .allocated_bytes = memory.peak_allocated,
                            .reserved_bytes = memory.peak_reserved,
                            .outside_bytes = driver.total - driver.free - memory.reserved,
                            .tokens_per_second = tokens_per_second};
    const channel::PlanEvent event =
        MakePlanEvent(context_.rank, plan_->plan, plan_->description, plan_->rates_known, measured);
    fmt::print("{}", PlanTable(event));
    context_.events.Write(event);
    plan_.reset();
  }

  TrainContext context_;
  Device gpu_;
  std::string device_;
  StepProfile profile_;
  std::optional<RankPlan> plan_;  // until it has been reported
  TrainingFacts facts_;
  channel::FlightRecorder* flight_;
  engine::TrafficMeter* traffic_;
  int64_t resumed_step_ = 0;  // steps that an earlier process made
  std::optional<MonoTime> last_progress_;
};

// The rows of the files as one data set. `weighs`: by the weights of the job.
std::shared_ptr<const engine::Dataset> OpenFiles(const engine::ChatTokenizer& tokenizer,
                                                 const Launch& launch,
                                                 const std::vector<channel::RowFile>& files,
                                                 OptionsOf options_of, bool weighs = true) {
  const auto named = spec::TrainParts(launch.spec);
  engine::ThrowIfError(named.status());
  std::vector<engine::Dataset::Part> parts;
  for (engine::PrepareOptions& options : OptionsOfFiles(launch, files, options_of)) {
    options.threads = launch.file.threads_per_rank;
    parts.push_back({engine::PrepareDataset(tokenizer, options).dataset,
                     weighs ? named->at(parts.size()).weight : 1});
  }
  const bool single = parts.size() == 1 && parts.front().weight == 1;
  return single ? parts.front().rows : engine::Dataset::Join(std::move(parts));
}

// A larger file would take longer to hash than a card is worth.
constexpr int64_t kMostHashed = int64_t{4} << 30;

TrainingFacts FactsOf(const Launch& launch, const Device& device, const engine::Dataset& rows,
                      const std::string& tokenizer) {
  TrainingFacts facts{.job = launch.file.job_id,
                      .base = launch.file.model_name,
                      .base_card = ReadCard(launch.file.model_dir),
                      .device = device.Name(),
                      .ranks = launch.file.world_size,
                      .engine = BuildText(),
                      .template_digest = tokenizer};
  for (const channel::RowFile& file : TrainingFiles(launch)) {
    CardData data{.name = file.name.empty() ? file.path : file.name};
    const absl::StatusOr<int64_t> size = io::FileSize(file.path);
    if (size.ok() && *size <= kMostHashed) {
      const absl::StatusOr<io::FileHash> hash = io::HashFile(file.path);
      if (hash.ok()) data.sha256 = hash->sha256;
    }
    facts.data.push_back(std::move(data));
  }
  const auto add = [&](const engine::DatasetStats& stats) {
    facts.rows += stats.used;
    facts.skipped += stats.skipped_total();
    facts.tokens += stats.tokens;
    facts.loss_tokens += stats.loss_tokens;
  };
  if (rows.parts().empty()) add(rows.stats());
  for (const engine::Dataset::Part& part : rows.parts()) add(part.rows->stats());
  return facts;
}

void PrintAttention(const spec::JobSpec& spec, const RankPlan& plan, const Device& device) {
  const at::TensorOptions options(device.torch);
  const std::vector<int64_t> lengths(plan.plan.execution.rows, plan.row_tokens);
  std::set<int64_t> sizes;
  for (int64_t layer = 0; layer < plan.shape.layers; ++layer) {
    sizes.insert(plan.shape.Layer(layer).head_dim);
  }
  // With fewer queries than keys none is cuDNN's, as of a short document.
  const bool over_nodes = spec.context_nodes() > 1;
  const std::vector<int64_t> kinds = over_nodes ? std::vector<int64_t>{1} : lengths;
  for (const int64_t size : sizes) {
    const at::Tensor heads = at::empty({1, plan.shape.heads, size},
                                       options.dtype(engine::ComputeTypeOf(spec, device.torch)));
    fmt::print("attention over {} x {} tokens, heads of {}: {}{}\n", lengths.size(),
               plan.row_tokens, size, engine::ops::AttentionKind(heads, kinds),
               over_nodes ? ", with keys of all nodes" : "");
  }
}

}  // namespace

channel::ExitCode TrainRun::Run() {
  try {
    return RunToEnd();
  } catch (const std::exception& error) {
    const std::string reason = StopReason(context_.commands);
    if (reason.empty()) throw;
    fmt::print("stopped ({}) while: {}\n", reason, error.what());
    return channel::kExitStopped;
  }
}

int64_t TrainRun::PeakMemory() const {
  return device_ ? engine::PeakMemoryBytes(device_->torch) : 0;
}

// A rank trains without a record too; only a hang of it would be named less well.
void TrainRun::OpenFlight() {
  const channel::RankLaunch& file = context_.launch.file;
  auto flight =
      channel::FlightRecorder::Create(channel::FlightPath(file.attempt_dir, context_.rank),
                                      context_.rank, file.world_size, context_.clock);
  if (!flight.ok()) {
    fmt::print(stderr, "no flight record: {}\n", Message(flight.status()));
    return;
  }
  flight_.emplace(*std::move(flight));
}

channel::ExitCode TrainRun::RunToEnd() {
  const channel::RankLaunch& file = context_.launch.file;
  // First of all: nothing may ask LibTorch for a GPU before the plugin is open.
  device_ = OpenDevice(file.device, LocalRank(context_.rank, file, GetEnv));
  const Device& device = *device_;
  OpenFlight();
  at::set_num_threads(file.threads_per_rank);
  at::set_num_interop_threads(1);
  if (flight_) flight_->SetPhase(channel::FlightPhase::kMeeting);
  rendezvous_ = std::make_unique<engine::Rendezvous>(
      MeetingPlace(context_.launch.file, context_.rank, context_.launch.spec));
  comm_ = engine::MakeCommunicator(*rendezvous_, device.torch);
  if (comm_->world() > 1 && context_.launch.spec.compute.preflight) {
    RunPreflight(context_.launch, context_.rank, device, *comm_, context_.events, context_.clock);
  }
  if (flight_) {
    if (comm_->world() > 1) traffic_.emplace(device.torch, context_.clock);
    comm_ = engine::MakeRecordedCommunicator(std::move(comm_), *flight_,
                                             traffic_ ? &*traffic_ : nullptr);
    flight_->SetPhase(channel::FlightPhase::kLoading);
  }
  if (context_.rank == file.first_rank && !file.network_settings.empty()) {
    fmt::print("network of node {}: {}\n", file.node, fmt::join(file.network_settings, " "));
  }
  auto observer = std::make_unique<EventObserver>(context_, device, flight_ ? &*flight_ : nullptr,
                                                  traffic_ ? &*traffic_ : nullptr);
  engine::TrainerOptions options = MakeOptions(device.PeakFlops());
  if (context_.rank == 0) {
    observer->SetFacts(FactsOf(context_.launch, device, *options.train, options.tokenizer));
  }
  const std::optional<RankPlan> plan = PlanRank(context_.launch, device, *options.train, *comm_);
  Apply(plan, options);
  if (plan) {
    fmt::print("plan: {}; {} of {} of GPU memory\n", plan->description,
               BytesText(plan->plan.memory.reserved()), BytesText(plan->memory_bytes));
    PrintAttention(context_.launch.spec, *plan, device);
    options.ceiling = MeasureCeiling(
        {plan->shape, context_.launch.spec.training.matmul, context_.launch.spec.fp8_copies(),
         context_.launch.spec.training.deterministic, plan->plan.execution.rows, plan->row_tokens},
        device, context_.clock, file.cache_dir);
    observer->SetPlan(*plan);
  }
  observer_ = std::move(observer);
  const MonoTime before = context_.clock.Mono();
  trainer_ =
      std::make_unique<engine::Trainer>(std::move(options), *comm_, *observer_, context_.clock);
  fmt::print("loaded the model in {:.1f} s\n", SecondsOf(context_.clock.Mono() - before));
  const engine::TrainResult result = trainer_->Run();
  // No rank ends while another is still in its last collective.
  comm_->Barrier();
  if (flight_) flight_->SetPhase(channel::FlightPhase::kEnding);
  context_.events.Sync();
  if (!result.stopped) return channel::kExitOk;
  const std::string reason = StopReason(context_.commands);
  fmt::print("stopped after step {}: {}\n", result.steps,
             reason.empty() ? "another rank's wish" : reason);
  return channel::kExitStopped;
}

engine::TrainerOptions TrainRun::MakeOptions(double peak_flops) const {
  const channel::RankLaunch& file = context_.launch.file;
  const spec::JobSpec& spec = context_.launch.spec;
  const auto tokenizer = engine::ChatTokenizer::OpenForJob(file.model_dir, spec);
  // `sft-rank prepare` has filled the cache: this finds it by content.
  engine::TrainerOptions options;
  options.spec = spec;
  options.model_dir = file.model_dir;
  options.model_name = file.model_name;
  options.train = OpenFiles(tokenizer, context_.launch, TrainingFiles(context_.launch),
                            engine::PrepareOptions::ForTraining);
  if (const auto files = ValidationFiles(context_.launch); !files.empty()) {
    options.validation = OpenFiles(tokenizer, context_.launch, files,
                                   engine::PrepareOptions::ForValidation, /*weighs=*/false);
    if (!spec.prefers()) {
      options.validation_bytes = engine::LearntBytes(*options.validation, tokenizer);
    }
  }
  if (spec.training.validation.predict_with_generate && options.validation != nullptr) {
    options.judge = MakeAnswerJudge(spec, tokenizer, options.validation, *device_, context_.clock);
  }
  options.output_dir = file.output_dir;
  options.adapter_dir = file.adapter_dir;
  options.cache_dir = file.cache_dir;
  options.tokenizer = tokenizer.digest();
  options.checkpoints = {file.checkpoint_dir, file.first_rank, file.local_ranks};
  options.resume = {file.resume_dir, file.resume_step, file.resume_changed,
                    file.resume_engine_alone};
  options.peak_flops = peak_flops;
  return options;
}

}  // namespace sft::rank
