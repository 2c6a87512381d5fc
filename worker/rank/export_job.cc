#include "worker/rank/export_job.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/duration.h"
#include "common/base/env.h"
#include "common/base/json.h"
#include "common/io/file.h"
#include "common/io/model_folder.h"
#include "common/spec/visit.h"
#include "worker/channel/work_folder.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/checkpoint/disk.h"
#include "worker/engine/checkpoint/safetensors_writer.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/export/gguf_model.h"
#include "worker/engine/model/adapters.h"
#include "worker/engine/model/config.h"
#include "worker/engine/model/families.h"
#include "worker/engine/train/base_weights.h"
#include "worker/rank/answer_job.h"
#include "worker/rank/group_variables.h"
#include "worker/rank/model_card.h"
#include "worker/rank/prepare.h"
#include "worker/rank/runaway_report.h"
#include "worker/rank/stop_signal.h"

namespace sft::rank {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using spec::ExportBase;
using spec::TrainedOn;

template <typename Value>
std::string Name(Value value) {
  return std::string(spec::EnumName(value));
}

constexpr char kOriginal[] = "original";
// The longest row that is compared.
constexpr int64_t kLongestRow = 2048;

std::unique_ptr<engine::QuantFormat> FormatOf(TrainedOn base) {
  switch (base) {
    case TrainedOn::kNf4:
      return engine::MakeNf4Format(/*double_quant=*/true);
    case TrainedOn::kNf4Single:
      return engine::MakeNf4Format(/*double_quant=*/false);
    case TrainedOn::kInt8:
      return engine::MakeInt8Format();
    case TrainedOn::kOriginal:
      return nullptr;
  }
  return nullptr;
}

// The type of merged weights. Those that are quantised afterwards stay fp32, to be rounded once.
at::ScalarType TypeOf(spec::ExportType type) {
  return type == spec::ExportType::kBf16 ? at::kBFloat16 : at::kFloat;
}

engine::GgmlType GgmlTypeOf(spec::ExportType type) {
  switch (type) {
    case spec::ExportType::kBf16:
      return engine::GgmlType::kBf16;
    case spec::ExportType::kQ8:
      return engine::GgmlType::kQ8_0;
    case spec::ExportType::kF32:
      return engine::GgmlType::kF32;
  }
  return engine::GgmlType::kF32;
}

// Where the tokenizer and the template are that the adapter was trained with.
fs::path TextFolder(const Launch& launch) {
  const fs::path adapter = launch.file.adapter_dir;
  return fs::exists(adapter / "tokenizer.json") ? adapter : fs::path(launch.file.model_dir);
}

// Throws UserError, too, for a row with a token that the model has no embedding for.
engine::PreparedDataset PrepareRows(const Launch& launch, const engine::ModelConfig& config) {
  const auto tokenizer = engine::ChatTokenizer::OpenForJob(TextFolder(launch), launch.spec);
  const int64_t positions = config.learned_positions;
  auto options = OptionsOfFiles(launch, TrainingFiles(launch), engine::PrepareOptions::ForTraining);
  options[0].sequence_length =
      static_cast<int>(positions > 0 ? std::min(positions, kLongestRow) : kLongestRow);
  options[0].on_long_rows = spec::LongRows::kTruncateRight;
  options[0].on_bad_rows = spec::BadRows::kSkip;
  // Each row has a token at least.
  if (options[0].max_examples == 0) {
    options[0].max_examples = launch.spec.exporting.compare_tokens;
  }
  engine::PreparedDataset prepared = engine::PrepareDataset(tokenizer, options[0]);
  RefuseTokensWithoutEmbedding(tokenizer.tokenizer(), *prepared.dataset, options[0].Name(),
                               config.vocab);
  return prepared;
}

std::string DifferenceText(const engine::LogitDifference& d) {
  return fmt::format(
      "logits differ by {:.4g} at most and {:.4g} on average, the likeliest token is the same "
      "after {:.2f}% of {} tokens, loss {:.4f} (as trained {:.4f})",
      d.largest, d.mean, 100 * d.agreement, d.tokens, d.loss_after, d.loss_before);
}

}  // namespace

void PrepareExport(const Launch& launch, const MemoryLimit& limit, EventLog& events,
                   const Clock& clock) {
  ReportRunaways({.event_file = EventPath(launch, "prepare"), .limit = limit}, clock);
  const auto config = engine::ReadConfig(launch.file.model_dir);
  engine::ModelLayout layout = engine::MakeLayout(config);
  const engine::BaseWeights base(launch.file.model_dir, layout, at::kCPU);
  fmt::print("model {}: {} of weights\n", launch.file.model_dir,
             BytesText(static_cast<int64_t>(base.files().TotalBytes())));
  if (launch.spec.exporting.form == spec::ExportForm::kGguf) {
    engine::CheckGguf(TextFolder(launch), config);
  }
  channel::PreparedEvent prepared;
  if (!launch.file.adapter_dir.empty()) {
    const engine::Adapter adapter = engine::ReadAdapter(launch.file.adapter_dir, config.prefix);
    engine::CheckBase(adapter.config, launch.file.model_name);
    engine::AddAdapter(layout, adapter);
    fmt::print("adapter {}: {} modules, r {}\n", launch.file.adapter_dir, adapter.pairs.size(),
               adapter.config.r);
    if (launch.spec.exporting.form == spec::ExportForm::kVllm) {
      engine::CheckVllmAdapter(config, adapter);
      events.Write(prepared);
      events.Sync();
      return;
    }
    const engine::PreparedDataset rows = PrepareRows(launch, config);
    prepared.rows = rows.dataset->stats().rows;
    prepared.used = rows.dataset->stats().used;
    prepared.tokens = rows.dataset->stats().tokens;
  }
  events.Write(prepared);
  events.Sync();
}

ExportJob::ExportJob(const Context& context)
    : context_(context),
      work_(channel::WorkFolder(context.launch.file.output_dir,
                                fs::path(context.launch.file.attempt_dir).filename().string())),
      trained_on_(FormatOf(context.launch.spec.exporting.trained_on)) {}

ExportJob::~ExportJob() {
  // A failure here leaves a folder that the worker removes; there is no one to tell.
  std::error_code ignored;
  fs::remove_all(work_, ignored);
  fs::remove(work_.parent_path(), ignored);
}

void ExportJob::GoOn() {
  if (flight_) flight_->SetPhase(channel::FlightPhase::kDelivering);
  context_.commands.Poll();
  const std::string& reason = context_.commands.stop_reason();
  if (reason.empty() && !StopSignalled()) return;
  fmt::print("stopped: {}\n", reason.empty() ? "SIGTERM" : reason);
  throw WasStopped();
}

void ExportJob::TellReady(const Device& device) {
  const double seconds = SecondsOf(context_.clock.Mono() - context_.process_start);
  fmt::print("exports on {}, ready after {:.1f} s\n", device.Name(), seconds);
  context_.events.Write(channel::ReadyEvent{
      .rank = context_.rank, .world = 1, .device = device.Name(), .seconds = seconds});
}

engine::GeneratorOptions ExportJob::AsTrained(const Device& device) const {
  const channel::RankLaunch& file = context_.launch.file;
  return {.model_dir = file.model_dir,
          .adapter_dir = file.adapter_dir,
          .device = device.torch,
          .quantized = trained_on_.get()};
}

ExportJob::Merged ExportJob::MergeInto(const std::string& base, const Device& device) {
  const Launch& launch = context_.launch;
  Merged merged{.base = base, .folder = work_ / base};
  merged.report = engine::MergeAdapter(
      {.model_dir = launch.file.model_dir,
       .adapter_dir = launch.file.adapter_dir,
       .target = merged.folder,
       .type = TypeOf(launch.spec.exporting.type),
       .quantized = base == kOriginal ? nullptr : trained_on_.get(),
       .metadata = {{"base_model", launch.file.model_name}, {"merged_into", base}},
       .on_tensor = [this] { GoOn(); }});
  merged.difference = engine::CompareLogits(
      rows_, as_trained_,
      engine::LogitsOfRows({.model_dir = merged.folder, .device = device.torch}, rows_,
                           [this] { GoOn(); }));
  fmt::print("merged into the {} base: {}\n", base, DifferenceText(merged.difference));
  fmt::print("  rounding to {} changed {:.2g} of what the adapter adds, on average of {} modules\n",
             Name(launch.spec.exporting.type), merged.report.mean_rounding, merged.report.modules);
  return merged;
}

void ExportJob::MergeAll(const Device& device) {
  const spec::JobSpec::Export& wanted = context_.launch.spec.exporting;
  std::string trained = Name(wanted.trained_on);
  const auto config = engine::ReadConfig(context_.launch.file.model_dir);
  if (config.stored.form == plan::StoredForm::kNf4 && wanted.trained_on != TrainedOn::kInt8) {
    // The files' own bytes are what an adapter on NF4 was trained beside.
    trained_on_.reset();
    trained = kOriginal;
  }
  rows_ =
      engine::RowsToCompare(*PrepareRows(context_.launch, config).dataset, wanted.compare_tokens);
  as_trained_ = engine::LogitsOfRows(AsTrained(device), rows_, [this] { GoOn(); });
  std::vector<std::string> bases;
  if (wanted.base != ExportBase::kTrained || trained == kOriginal) bases.emplace_back(kOriginal);
  if (wanted.base != ExportBase::kOriginal && trained != kOriginal) bases.push_back(trained);
  for (const std::string& base : bases) {
    GoOn();
    merged_.push_back(MergeInto(base, device));
  }
  as_trained_.clear();
}

void ExportJob::ChooseBetter() {
  std::stable_sort(merged_.begin(), merged_.end(), [](const Merged& a, const Merged& b) {
    return a.difference.mean < b.difference.mean;
  });
  if (merged_.size() < 2) return;
  fmt::print("better: the {} base\n", merged_.front().base);
}

std::string ExportJob::GgufFile() const {
  return fmt::format("model-{}.gguf", Name(context_.launch.spec.exporting.type));
}

void ExportJob::WriteGguf() {
  const channel::RankLaunch& file = context_.launch.file;
  const spec::ExportType type = context_.launch.spec.exporting.type;
  const fs::path source = merged_.empty() ? fs::path(file.model_dir) : merged_.front().folder;
  const std::string name = GgufFile();
  made_ = work_ / "gguf";
  engine::CheckDisk(io::MakeDirs(made_.string()));
  engine::WriteGguf({.model_dir = source,
                     .target = made_ / name,
                     .type = GgmlTypeOf(type),
                     .name = file.model_name,
                     .base_model = HubIdOf(file.model_name),
                     .on_tensor = [this] { GoOn(); }});
  engine::WriteTextFile(made_ / "Modelfile", engine::ModelfileText(source, name));
}

void ExportJob::WriteForVllm() {
  const channel::RankLaunch& file = context_.launch.file;
  made_ = work_ / "vllm";
  for_vllm_ = engine::WriteVllmAdapter({.model_dir = file.model_dir,
                                        .adapter_dir = file.adapter_dir,
                                        .text_dir = TextFolder(context_.launch),
                                        .target = made_});
  fmt::print("adapter for vLLM: {} linears, read back to the last bit\n", for_vllm_.linears);
}

ordered_json ExportJob::Result() const {
  const Launch& launch = context_.launch;
  if (launch.spec.exporting.form == spec::ExportForm::kVllm) {
    return {{"form", Name(launch.spec.exporting.form)},
            {"base_model", launch.file.model_name},
            {"job", launch.file.job_id},
            {"linears", for_vllm_.linears}};
  }
  ordered_json result = {{"form", Name(launch.spec.exporting.form)},
                         {"type", Name(launch.spec.exporting.type)},
                         {"base_model", launch.file.model_name},
                         {"job", launch.file.job_id}};
  if (merged_.empty()) return result;
  result["trained_on"] = Name(launch.spec.exporting.trained_on);
  result["merged_into"] = merged_.front().base;
  ordered_json forms = ordered_json::object();
  for (const Merged& merged : merged_) {
    const engine::LogitDifference& d = merged.difference;
    forms[merged.base] = {{"tokens", d.tokens},
                          {"largest_logit_difference", d.largest},
                          {"mean_logit_difference", d.mean},
                          {"same_likeliest_token", d.agreement},
                          {"loss_as_trained", d.loss_before},
                          {"loss_merged", d.loss_after},
                          {"modules", merged.report.modules},
                          {"mean_rounding_share", merged.report.mean_rounding},
                          {"largest_rounding_share", merged.report.largest_rounding},
                          {"largest_rounding_module", merged.report.largest_module}};
  }
  result["compared"] = std::move(forms);
  return result;
}

void ExportJob::Deliver() {
  const fs::path target = context_.launch.file.output_dir;
  const ordered_json result = Result();
  engine::WriteTextFile(made_ / "export.json", DumpJson(result, 2) + "\n");
  const channel::RankLaunch& file = context_.launch.file;
  ExportFacts facts{
      .base = file.model_name, .base_card = ReadCard(file.model_dir), .result = result};
  // Another folder may be anybody's.
  if (file.adapter_dir == file.attempt_dir + "/adapter") {
    facts.adapter_card = ReadCard(file.adapter_dir);
  }
  if (context_.launch.spec.exporting.form == spec::ExportForm::kGguf) facts.gguf = GgufFile();
  facts.vllm_rank = for_vllm_.rank;
  engine::WriteTextFile(made_ / io::kModelCard, ExportCard(facts));
  engine::CheckDisk(io::RemoveAll(target.string()));
  engine::CheckDisk(io::RenameDurably(made_.string(), target.string()));
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(target)) {
    bytes += static_cast<int64_t>(entry.file_size());
  }
  fmt::print("{} of {}: {}\n", Name(context_.launch.spec.exporting.form), BytesText(bytes),
             target.string());
  context_.events.Write(
      channel::ArtifactEvent{.kind = "model", .path = target.string(), .bytes = bytes});
  context_.events.Sync();
}

channel::ExitCode ExportJob::Run() {
  const channel::RankLaunch& file = context_.launch.file;
  // First of all: nothing may ask LibTorch for a GPU before the plugin is open.
  const Device device = OpenDevice(file.device, LocalRank(context_.rank, file, GetEnv));
  if (auto flight = OpenFlightRecord(file, context_.rank, context_.clock)) {
    flight_.emplace(*std::move(flight));
  }
  if (flight_) flight_->SetPhase(channel::FlightPhase::kDelivering);
  at::set_num_threads(file.threads_per_rank);
  at::set_num_interop_threads(1);
  LimitMemory(context_.launch.spec, device);
  // What earlier attempts left there, too.
  engine::CheckDisk(io::RemoveAll(work_.parent_path().string()));
  engine::CheckDisk(io::MakeDirs(work_.string()));
  TellReady(device);
  try {
    Work(device);
  } catch (const WasStopped&) {
    return channel::kExitStopped;
  }
  Deliver();
  if (flight_) flight_->SetPhase(channel::FlightPhase::kEnding);
  return channel::kExitOk;
}

void ExportJob::Work(const Device& device) {
  if (context_.launch.spec.exporting.form == spec::ExportForm::kVllm) {
    WriteForVllm();
    return;
  }
  if (!context_.launch.file.adapter_dir.empty()) {
    MergeAll(device);
    ChooseBetter();
    made_ = merged_.front().folder;
  }
  if (context_.launch.spec.exporting.form == spec::ExportForm::kGguf) WriteGguf();
}

}  // namespace sft::rank
