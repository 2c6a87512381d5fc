#include "worker/preview/preview.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/base/clock.h"
#include "common/base/duration.h"
#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/io/file.h"
#include "common/plan/gpu.h"
#include "common/plan/model_config.h"
#include "common/plan/plan.h"
#include "common/spec/template_settings.h"
#include "common/spec/visit.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/data_report.h"
#include "worker/engine/data/files.h"
#include "worker/preview/job_rows.h"

namespace sft::preview {
namespace {

// Rows are measured whole, however long they are.
constexpr int kAnyLength = 1 << 30;
constexpr int64_t kSamples = 3;
// What the time of an epoch is planned with: the memory of a large GPU, and rows of a micro-batch.
constexpr int64_t kGpuBytes = 75'000'000'000, kMostRows = 64;
constexpr size_t kSampleBytes = 1500;
// Problems of rows that are listed with their lines.
constexpr size_t kShownRows = 5;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    absl::StatusOr<std::string> path = io::MakeTempDir("sft-data");
    engine::ThrowIfNodeError(path.status());
    path_ = *std::move(path);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::vector<std::string> Items(std::string_view text) {
  std::vector<std::string> items;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (comma > 0) items.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return items;
}

absl::Status ParseCount(const std::string& flag, const std::string& text, int64_t* value) {
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, *value);
  if (error == std::errc() && stopped == end && *value >= 1 && *value <= (1 << 24)) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      fmt::format("{} takes a whole number from 1 to {}, not \"{}\"", flag, 1 << 24, text));
}

struct Sample {
  int64_t line;
  int64_t tokens;
  std::string answer;  // of preferences: "chosen", "good", ...
  std::string text;
};

// What an answer is in a job that compares answers.
std::string AnswerWord(const Options& options, const engine::Document& document) {
  if (!options.prefers()) return "";
  const bool bad = std::ranges::any_of(
      document.loss, [](uint8_t mark) { return (mark & engine::kOfBadAnswer) != 0; });
  if (options.pairs()) return bad ? "rejected" : "chosen";
  return bad ? "bad" : "good";
}

// The first, the middle and the last row; of a pair both answers.
std::vector<Sample> SamplesOf(const Options& options, const engine::Dataset& dataset,
                              const engine::Tokenizer& tokenizer, std::string_view begin,
                              std::string_view end, std::string (*show)(std::string_view)) {
  std::vector<Sample> samples;
  const int64_t of_row = options.pairs() ? 2 : 1, rows = dataset.size() / of_row;
  const int64_t count = std::min(kSamples, rows);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = count == 1 ? 0 : i * (rows - 1) / (count - 1);
    for (int64_t index = row * of_row; index < (row + 1) * of_row; ++index) {
      const engine::Document document = dataset.Get(index);
      samples.push_back({document.line, static_cast<int64_t>(document.tokens.size()),
                         AnswerWord(options, document),
                         engine::MarkedText(document, tokenizer, begin, end, show)});
    }
  }
  return samples;
}

// How long an epoch takes.
struct EpochTime {
  double seconds = 0;  // 0: not known
  std::string why;     // in place of them
};

// The time of an epoch of a LoRA job, by the server's plan; packed where rows can be.
EpochTime TimeOf(const Options& options, const engine::DataReport& report) {
  const plan::GpuRates* const gpu = plan::FindGpu(options.gpu_type);
  const absl::StatusOr<std::string> config = io::ReadFile(options.model + "/config.json");
  if (!config.ok()) return {.why = std::string(Message(config.status()))};
  const absl::StatusOr<plan::ModelConfig> model = plan::ParseModelConfig(*config);
  if (!model.ok()) return {.why = std::string(Message(model.status()))};
  plan::PlanInput input = {.shape = *model, .job = {}, .gpu = *gpu, .memory_bytes = kGpuBytes};
  input.job.data.packing = !options.prefers();
  spec::ParseEnum(options.loss, &input.job.training.loss);
  input.job.hyperparameters.sequence_length = static_cast<int>(options.sequence_length);
  input.job.hyperparameters.per_device_batch = static_cast<int>(std::min(options.batch, kMostRows));
  const absl::StatusOr<plan::Plan> planned = plan::MakePlan(input);
  if (!planned.ok()) return {.why = std::string(Message(planned.status()))};
  if (planned->tokens_per_second <= 0) return {.why = "the plan knows no rate"};
  return {.seconds = static_cast<double>(report.trained_tokens) / planned->tokens_per_second};
}

std::string TimeText(const Options& options, const engine::DataReport& report) {
  if (options.gpu_type.empty()) return "";
  const EpochTime time = TimeOf(options, report);
  if (time.seconds == 0) return fmt::format("  time        not known: {}\n", Shown(time.why));
  // In whole minutes or hours where it takes many.
  const int64_t unit = time.seconds > 36'000 ? 3600 : time.seconds > 600 ? 60 : 1;
  const auto units = static_cast<int64_t>(std::ceil(time.seconds / static_cast<double>(unit)));
  const std::chrono::seconds whole(units * unit);
  return fmt::format(
      "  time        about {} an epoch on one {}: LoRA in bf16{}; `sftctl submit --dry-run` "
      "says it of your job\n",
      DurationText(whole), options.gpu_type, options.prefers() ? "" : ", packed");
}

std::string Json(const Options& options, const engine::DatasetStats& stats,
                 const engine::DataReport& report, const engine::ChatTokenizer& tokenizer,
                 const std::vector<Sample>& samples, const std::optional<JobRows>& job) {
  nlohmann::ordered_json forms = nlohmann::ordered_json::object();
  for (int i = 0; i < data::kForms; ++i) {
    if (stats.forms[static_cast<size_t>(i)] == 0) continue;
    forms[std::string(data::FormName(static_cast<data::Form>(i)))] =
        stats.forms[static_cast<size_t>(i)];
  }
  nlohmann::ordered_json bad = nlohmann::ordered_json::array();
  for (const engine::SkippedRow& row : stats.skipped_rows) {
    bad.push_back({{"line", row.line},
                   {"problem", engine::RowProblemName(row.problem)},
                   {"reason", row.reason}});
  }
  nlohmann::ordered_json longer = nlohmann::ordered_json::array();
  for (const engine::LongerRows& rows : report.longer) {
    longer.push_back({{"tokens", rows.limit}, {"rows", rows.rows}});
  }
  nlohmann::ordered_json shown = nlohmann::ordered_json::array();
  for (const Sample& sample : samples) {
    shown.push_back({{"line", sample.line}, {"tokens", sample.tokens}, {"text", sample.text}});
    if (!sample.answer.empty()) shown.back()["answer"] = sample.answer;
  }
  nlohmann::ordered_json seconds;
  if (!options.gpu_type.empty()) {
    if (const double known = TimeOf(options, report).seconds; known > 0) seconds = known;
  }
  nlohmann::ordered_json result = {{"file", options.shown()},
                                   {"rows", stats.rows},
                                   {"used", stats.used},
                                   {"forms", std::move(forms)},
                                   {"bad_rows", stats.skipped_total()},
                                   {"first_bad_rows", std::move(bad)},
                                   {"tokens", stats.tokens},
                                   {"loss_tokens", stats.loss_tokens},
                                   {"shortest", report.shortest},
                                   {"median", report.median},
                                   {"p90", report.p90},
                                   {"p99", report.p99},
                                   {"longest", report.longest},
                                   {"longer", std::move(longer)},
                                   {"sequence_length", options.sequence_length},
                                   {"batch", options.batch},
                                   {"padded_share", report.padded_share},
                                   {"packed_share", report.packed_share},
                                   {"steps", report.steps},
                                   {"packed_steps", report.packed_steps},
                                   {"epoch_seconds", std::move(seconds)},
                                   {"template_date", nullptr},
                                   {"unused_template_arguments", tokenizer.unused_arguments()},
                                   {"samples", std::move(shown)}};
  if (tokenizer.asks_for_day()) result["template_date"] = tokenizer.settings().day;
  if (job) result["job"] = JobRowsJson(options, *job);
  // Rows that are compared are not packed.
  if (options.prefers()) {
    for (const char* key : {"packed_share", "packed_steps"}) result[key] = nullptr;
  }
  return DumpJson(result, 2) + "\n";
}

std::string RowsText(const engine::DatasetStats& stats, std::string_view place) {
  std::string text = fmt::format("  rows        {} of {} can be used: {}\n", stats.used, stats.rows,
                                 data::FormsText(stats.forms));
  if (stats.skipped_total() == 0) return text;
  text += fmt::format("  bad rows    {} (data.on_bad_rows)\n", stats.skipped_total());
  const size_t shown = std::min(stats.skipped_rows.size(), kShownRows);
  for (size_t i = 0; i < shown; ++i) {
    const engine::SkippedRow& row = stats.skipped_rows[i];
    text += fmt::format("    {} {}: {}: {}\n", place, row.line, engine::RowProblemName(row.problem),
                        Shown(row.reason));
  }
  if (stats.skipped_total() > static_cast<int64_t>(shown)) {
    text += fmt::format("    and {} more\n", stats.skipped_total() - static_cast<int64_t>(shown));
  }
  return text;
}

std::string EpochText(const Options& options, const engine::DataReport& report) {
  if (options.prefers()) {
    return fmt::format("  an epoch    {} steps of {} {}\n", report.steps, options.batch,
                       options.pairs() ? "pairs" : "answers");
  }
  return fmt::format(
      "  an epoch    {} steps of {} rows, {:.1f} % of their tokens padding; packed: {} steps, "
      "{:.1f} % padding\n",
      report.steps, options.batch, 100 * report.padded_share, report.packed_steps,
      100 * report.packed_share);
}

// What the chat template prints beside the rows, or cannot.
std::string TemplateText(const Options& options, const engine::ChatTokenizer& tokenizer) {
  std::string text;
  if (tokenizer.asks_for_day()) {
    text += fmt::format("  day         {}, which the chat template prints{}\n",
                        tokenizer.settings().day,
                        options.template_date.empty()
                            ? ": today's; a job has that of its submission, or data.template_date"
                            : " (data.template_date)");
  }
  for (const std::string& name : tokenizer.unused_arguments()) {
    text += fmt::format(
        "  no effect   {} (data.template_arguments): the chat template does not "
        "speak of it\n",
        Shown(name));
  }
  return text;
}

std::string Text(const Options& options, const engine::DatasetStats& stats,
                 const engine::DataReport& report, const engine::ChatTokenizer& tokenizer,
                 const std::vector<Sample>& samples, std::string_view place,
                 const std::optional<JobRows>& job) {
  std::string text = Shown(options.shown()) + "\n" + RowsText(stats, place);
  text += TemplateText(options, tokenizer);
  text += fmt::format("  tokens      {} in all, {:.1f} % of them with loss\n", stats.tokens,
                      100 * Share(stats.loss_tokens, stats.tokens));
  text += fmt::format("  of a row    {} to {}; median {}, 90 % up to {}, 99 % up to {}\n",
                      report.shortest, report.longest, report.median, report.p90, report.p99);
  for (const engine::LongerRows& rows : report.longer) {
    const bool ours = rows.limit == options.sequence_length;
    if (rows.rows == 0 && !ours) continue;
    text += fmt::format("  over {:<7}{} rows ({:.1f} %){}\n", rows.limit, rows.rows,
                        100 * Share(rows.rows, report.rows),
                        ours ? ", too long for sequence_length (data.on_long_rows)" : "");
  }
  text += EpochText(options, report);
  text += TimeText(options, report);
  if (job) text += JobRowsText(options, *job, place);
  text += options.color ? "\nWhat is learnt is green.\n" : "\nWhat is learnt stands in >> <<.\n";
  for (const Sample& sample : samples) {
    const bool cut = sample.text.size() > kSampleBytes;
    text += fmt::format("\n{} {}{}{}, {} tokens:\n{}{}{}\n", place, sample.line,
                        sample.answer.empty() ? "" : ", ", sample.answer, sample.tokens,
                        ToUtf8(sample.text.substr(0, kSampleBytes)), cut ? " ..." : "",
                        options.color ? "\x1b[0m" : "");
  }
  return text;
}

// Of values that are no numbers.
absl::Status CheckWords(const Options& options) {
  if (!options.gpu_type.empty() && plan::FindGpu(options.gpu_type) == nullptr) {
    std::string known;
    for (const plan::GpuRates& gpu : plan::KnownGpus()) known += fmt::format(" {}", gpu.type);
    return InvalidArgument(
        fmt::format("--gpu-type {} is not known; these are:{}", options.gpu_type, known));
  }
  if (!options.template_date.empty() && !spec::IsDay(options.template_date)) {
    return InvalidArgument(fmt::format("--template-date takes a day such as 2026-11-26, not \"{}\"",
                                       options.template_date));
  }
  const auto given = spec::TemplateArguments(options.template_arguments);
  if (given.ok()) return absl::OkStatus();
  return InvalidArgument(fmt::format("--template-argument: {}", Message(given.status())));
}

}  // namespace

std::string HelpText() {
  return R"(sft-data: what a data set is to a model, before a job

  sft-data FILE --model DIR [--sequence-length N] [--batch N] [--columns OURS=THEIRS,...]
           [--roles OURS=THEIRS,...] [--chat-template TEXT] [--template-date YYYY-MM-DD]
           [--template-argument NAME=VALUE]... [--loss-on assistant|all]
           [--loss sft|dpo|orpo|simpo|kto] [--alpaca-prompt template|stanford]
           [--text-documents whole|blank_lines] [--gpu-type TYPE] [--first N]
           [--set KEY=VALUE]... [--name TEXT] [--color] [--json]

Reads the rows as a job would: their forms, the first bad ones by line, tokens, rows that are too
long, what padding and packing cost, and three rows with what is learnt of them marked. Needs the
model's tokenizer and chat template alone. With --set data.on_long_rows=split, data.val_split=0.05
or other keys of a job file it also says what that job would train on. Started by
`sftctl data check` and `sftctl submit`.

Example:
  sft-data train.jsonl --model models/SmolLM2-135M-Instruct --sequence-length 4096

Exit codes: 0 done; 2 wrong arguments; 64 data or model cannot be used; 65 the disk failed.
)";
}

absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& args) {
  Options options;
  std::string columns, roles, length, batch, loss_on, first, argument, setting;
  const std::pair<std::string_view, std::string*> flags[] = {
      {"--model", &options.model},
      {"--chat-template", &options.chat_template},
      {"--columns", &columns},
      {"--roles", &roles},
      {"--sequence-length", &length},
      {"--batch", &batch},
      {"--loss-on", &loss_on},
      {"--name", &options.name},
      {"--gpu-type", &options.gpu_type},
      {"--loss", &options.loss},
      {"--template-date", &options.template_date},
      {"--template-argument", &argument},
      {"--alpaca-prompt", &options.alpaca_prompt},
      {"--text-documents", &options.text_documents},
      {"--first", &first},
      {"--set", &setting}};
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--help" || arg == "-h") {
      options.help = true;
      return options;
    }
    if (arg == "--version") {
      options.version = true;
      return options;
    }
    if (arg == "--json" || arg == "--color") {
      (arg == "--json" ? options.json : options.color) = true;
      continue;
    }
    const auto* const flag = std::ranges::find(flags, std::string_view(arg),
                                               &std::pair<std::string_view, std::string*>::first);
    if (flag != std::end(flags)) {
      if (++i == args.size()) return InvalidArgument(fmt::format("{} needs a value", arg));
      *flag->second = args[i];
      if (flag->second == &argument) options.template_arguments.push_back(argument);
      if (flag->second == &setting) options.settings.push_back(setting);
    } else if (arg.starts_with("--") || !options.file.empty()) {
      return InvalidArgument(fmt::format("unknown argument \"{}\"", arg));
    } else {
      options.file = arg;
    }
  }
  if (options.file.empty()) return InvalidArgument("no FILE given");
  if (options.model.empty()) return InvalidArgument("--model DIR is missing");
  // As a job has it that does not say.
  if (loss_on.empty()) loss_on = options.loss == "orpo" ? "all" : "assistant";
  if (loss_on != "assistant" && loss_on != "all") {
    return InvalidArgument(fmt::format("--loss-on takes assistant or all, not \"{}\"", loss_on));
  }
  if (spec::Loss loss = spec::Loss::kSft; !spec::ParseEnum(options.loss, &loss)) {
    return InvalidArgument(
        fmt::format("--loss takes sft, dpo, orpo, simpo or kto, not \"{}\"", options.loss));
  }
  SFT_RETURN_IF_ERROR(CheckWords(options));
  options.loss_on_all = loss_on == "all";
  if (options.loss_on_all && options.prefers() && options.loss != "orpo") {
    return InvalidArgument(fmt::format(
        "--loss-on all: a job with training.loss = \"{}\" compares answers alone", options.loss));
  }
  options.columns = Items(columns);
  options.roles = Items(roles);
  if (!length.empty()) {
    SFT_RETURN_IF_ERROR(ParseCount("--sequence-length", length, &options.sequence_length));
  }
  if (!batch.empty()) SFT_RETURN_IF_ERROR(ParseCount("--batch", batch, &options.batch));
  if (!first.empty()) SFT_RETURN_IF_ERROR(ParseCount("--first", first, &options.first));
  SFT_ASSIGN_OR_RETURN(options.job, JobOf(options));
  return options;
}

Found Preview(const Options& options) {
  const TemporaryFolder folder;
  // One day for all rows, and for what is said of it.
  const std::string day =
      options.template_date.empty() ? spec::DayOf(Clock::Real().Wall()) : options.template_date;
  const auto tokenizer =
      engine::ChatTokenizer::Open(options.model, options.chat_template,
                                  engine::TemplateSettings::Of(day, options.template_arguments));
  engine::PrepareOptions prepare;
  prepare.data = options.file;
  prepare.cache_dir = folder.path();
  prepare.sequence_length = kAnyLength;
  prepare.on_bad_rows = spec::BadRows::kSkip;
  prepare.learns = data::LearnsOf(options.loss);
  prepare.max_examples = options.first > 0 ? options.first : options.job.data.max_examples;
  prepare.text_documents = options.job.data.text_documents;
  prepare.names = data::NamesOf(options.columns, options.roles);
  prepare.names.stanford = options.job.data.alpaca_prompt == spec::AlpacaPrompt::kStanford;
  prepare.loss_on = options.loss_on_all ? spec::LossOn::kAll : spec::LossOn::kAssistant;
  const engine::PreparedDataset prepared = engine::PrepareDataset(tokenizer, prepare);
  const engine::Dataset& dataset = *prepared.dataset;
  const engine::DataReport report =
      engine::ReportOn(dataset, options.sequence_length, options.batch, options.pairs());
  const bool color = options.color && !options.json;
  const std::vector<Sample> samples =
      SamplesOf(options, dataset, tokenizer.tokenizer(), color ? "\x1b[32m" : ">>",
                color ? "\x1b[0m" : "<<", options.json ? nullptr : Shown);
  // A pair of equal answers is left out whatever the job says.
  const int64_t refused =
      dataset.stats().skipped_total() -
      dataset.stats().skipped[static_cast<size_t>(engine::RowProblem::kSameAnswers)];
  std::optional<JobRows> job;
  if (!options.settings.empty()) job = JobRowsOf(options, tokenizer, folder.path());
  return {options.json
              ? Json(options, dataset.stats(), report, tokenizer, samples, job)
              : Text(options, dataset.stats(), report, tokenizer, samples, prepared.place, job),
          job ? job->refused() : refused > 0 || report.longest > options.sequence_length};
}

}  // namespace sft::preview
