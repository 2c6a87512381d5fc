#include <absl/strings/str_split.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

#include "client/base/data_program.h"
#include "client/base/fetched_tokenizer.h"
#include "client/base/packed_folder.h"
#include "client/base/rows_text.h"
#include "client/commands/commands.h"
#include "client/output/json.h"
#include "client/output/text.h"
#include "common/base/env.h"
#include "common/base/json.h"
#include "common/data/dataset_check.h"
#include "common/io/file.h"
#include "common/spec/resolve.h"

namespace sft::client {
namespace {

constexpr int64_t kMostJobBytes = 1 << 20;
constexpr std::string_view kModelKey = "job.model", kBatchKey = "hyperparameters.global_batch",
                           kLengthKey = "hyperparameters.sequence_length",
                           kLossKey = "training.loss";
// What decides which rows a job trains on, and how they are cut.
constexpr std::string_view kRowsOfJob[] = {
    "data.on_bad_rows", "data.on_long_rows", "data.split_overlap",
    "data.val_split",   "data.group_by",     "data.dedup",
    "data.packing",     "data.max_examples", "hyperparameters.seed"};

struct DataCheckOptions {
  std::string file, job, gpu_type;
  std::vector<std::string> template_arguments;
  bool packing = false;
  std::optional<int> sequence_length, batch;
  // Keys of the job file and their values as one would type them: those of --job, then the flags.
  std::map<std::string, std::string, std::less<>> values;
  std::string name;          // of a folder
  bool of_job = false;       // it is asked what a job would train on
  bool named_model = false;  // by a flag
  const std::string& shown() const { return name.empty() ? file : name; }
  std::string Value(std::string_view key) const {
    const auto found = values.find(key);
    return found == values.end() ? "" : found->second;
  }
  std::string Loss() const { return Value(kLossKey).empty() ? "sft" : Value(kLossKey); }
};

bool IsOfRows(std::string_view key) {
  return std::ranges::find(kRowsOfJob, key) != std::end(kRowsOfJob);
}

data::RowNames NamesOfColumns(const DataCheckOptions& options) {
  const std::vector<std::string> columns =
      absl::StrSplit(options.Value("data.columns"), ',', absl::SkipEmpty());
  return data::NamesOf(columns, {});
}

ExitCode FailHere(Connection& connection, ExitCode code, const std::string& message) {
  connection.console().err << "sftctl: " << Lines(message) << "\n";
  return code;
}

// Checks the file alone, as `submit` does.
ExitCode CheckForms(Connection& connection, const DataCheckOptions& options, bool json) {
  const absl::StatusOr<data::DatasetCheck> found = data::CheckDataset(
      options.file, options.file, NamesOfColumns(options), data::LearnsOf(options.Loss()));
  if (!found.ok()) {
    return FailHere(connection, kUsage,
                    fmt::format("{}: {}", options.shown(), Message(found.status())));
  }
  if (json) {
    nlohmann::ordered_json forms = nlohmann::ordered_json::object();
    for (int i = 0; i < data::kForms; ++i) {
      const int64_t count = found->forms[static_cast<size_t>(i)];
      if (count > 0) forms[std::string(data::FormName(static_cast<data::Form>(i)))] = count;
    }
    connection.console().out << DumpJson(nlohmann::ordered_json{{"file", options.shown()},
                                                                {"rows", found->rows},
                                                                {"forms", std::move(forms)},
                                                                {"odd_rows", found->odd_rows},
                                                                {"first_odd", found->first_odd}},
                                         2)
                             << "\n";
  } else {
    connection.console().out << fmt::format("{}\n  rows        {}: {}\n", OneLine(options.shown()),
                                            found->rows, data::FormsText(found->forms));
    if (found->odd_rows > 0) {
      connection.console().out << fmt::format("  odd rows    {}, the first at {}\n",
                                              found->odd_rows, OneLine(found->first_odd));
    }
    connection.console().err << fmt::format(
        "sftctl: tokens, lengths and what is learnt{} are shown with --model, a folder with the "
        "model's tokenizer or a model that a node has\n",
        options.of_job ? ", and what the job trains on," : "");
  }
  return data::RowsProblem(*found, /*skips=*/false, /*taken=*/0).empty() ? kSucceeded : kUsage;
}

// Takes out what a job gives the template under a name that a flag gives anew.
void DropArgument(const std::string& name, std::vector<std::string>& arguments) {
  for (size_t i = 0; i + 1 < arguments.size(); ++i) {
    if (arguments[i] != "--template-argument" || !arguments[i + 1].starts_with(name + "="))
      continue;
    const auto at = arguments.begin() + static_cast<std::ptrdiff_t>(i);
    arguments.erase(at, at + 2);
    return;
  }
}

// With the model's tokenizer.
ExitCode CheckTokens(Connection& connection, const DataCheckOptions& options, bool json) {
  std::vector<std::string> arguments = {options.file, "--model", options.Value(kModelKey)};
  for (std::string& argument :
       RowArguments([&](std::string_view key) { return options.Value(key); })) {
    arguments.push_back(std::move(argument));
  }
  const auto add = [&](const char* flag, std::string value) {
    if (!value.empty()) arguments.insert(arguments.end(), {flag, std::move(value)});
  };
  add("--batch", options.Value(kBatchKey));
  add("--gpu-type", options.gpu_type);
  add("--name", options.name);
  for (const std::string& argument : options.template_arguments) {
    DropArgument(argument.substr(0, argument.find('=')), arguments);
    add("--template-argument", argument);
  }
  for (const std::string_view key : kRowsOfJob) {
    const std::string value = options.Value(key);
    if (options.of_job && !value.empty()) add("--set", fmt::format("{}={}", key, value));
  }
  if (json) arguments.emplace_back("--json");
  if (connection.console().terminal && !GetEnv("NO_COLOR")) arguments.emplace_back("--color");
  connection.console().out.flush();
  const absl::StatusOr<DataProgramEnd> end = RunDataProgram(std::move(arguments), /*keeps=*/false);
  if (!end.ok()) return FailHere(connection, kInternal, std::string(Message(end.status())));
  const bool bad = end->code == kDataRefused || end->code == kUsage;
  return end->code == 0 ? kSucceeded : bad ? kUsage : kInternal;
}

ExitCode CheckFile(Connection& connection, DataCheckOptions options, bool json) {
  const std::string model = options.Value(kModelKey);
  if (model.empty()) return CheckForms(connection, options, json);
  if (io::IsDirectory(model)) return CheckTokens(connection, options, json);
  const absl::StatusOr<FetchedTokenizer> fetched = FetchedTokenizer::Fetch(connection, model);
  if (!fetched.ok()) {
    const std::string why =
        fmt::format("the tokenizer of {} is in no folder here, nor from a node: {}", OneLine(model),
                    Message(fetched.status()));
    if (options.named_model) return FailHere(connection, kUsage, why);
    connection.console().err << "sftctl: " << Lines(why) << "\n";
    return CheckForms(connection, options, json);
  }
  options.values[std::string(kModelKey)] = fetched->folder();
  return CheckTokens(connection, options, json);
}

// As `submit` sends a folder: its rows as one file.
ExitCode CheckFolder(Connection& connection, DataCheckOptions options, bool json) {
  const absl::StatusOr<PackedFolder> packed =
      PackedFolder::Make(options.file, NamesOfColumns(options));
  if (!packed.ok()) {
    return FailHere(connection, kUsage, std::string(Message(packed.status())));
  }
  connection.console().err << fmt::format("{}: {} file{} ({})\n", OneLine(options.file),
                                          packed->files(), packed->files() == 1 ? "" : "s",
                                          OneLine(packed->chosen()));
  options.name = options.file;
  options.file = packed->path();
  return CheckFile(connection, options, json);
}

// The rows' file as the job file names it, from where `sftctl` runs.
absl::StatusOr<std::string> FileOfJob(const spec::Resolution& job, const std::string& job_file) {
  if (!job.spec.data.mixture.empty()) {
    return InvalidArgument(
        "data.train has several files; name the one to check: sftctl data check "
        "FILE --job " +
        job_file);
  }
  const std::string& path = job.spec.job.data;
  if (path.empty()) return InvalidArgument(job_file + " names no job.data");
  if (!spec::NodePath(path).empty()) {
    return InvalidArgument(path + " is on the nodes; give a file of this machine as FILE");
  }
  return (std::filesystem::path(job_file).parent_path() / path).string();
}

// Takes from the job file what no flag says.
absl::Status TakeFromJob(DataCheckOptions& options) {
  const absl::StatusOr<std::string> text = io::ReadFile(options.job, kMostJobBytes);
  if (!text.ok()) return InvalidArgument(Message(text.status()));
  const std::string name = std::filesystem::path(options.job).filename().string();
  const spec::Resolution job = spec::Resolve(*text, name, {});
  // What else is wrong with the job does not change its rows; `submit --dry-run` says it.
  for (const spec::Problem& problem : job.problems) {
    const bool of_rows = problem.key.empty() || problem.key.starts_with("data.") ||
                         problem.key == kLengthKey || problem.key == kLossKey;
    if (of_rows) {
      return InvalidArgument(
          fmt::format("{}:{}: {}: {}", options.job, problem.line, problem.key, problem.message));
    }
  }
  if (options.file.empty()) {
    SFT_ASSIGN_OR_RETURN(options.file, FileOfJob(job, options.job));
  }
  for (const spec::ResolvedValue& value : job.values) {
    const bool counts = value.key.starts_with("data.") || value.key == kLengthKey ||
                        value.key == kLossKey || value.key == kBatchKey || value.key == kModelKey ||
                        IsOfRows(value.key);
    if (!counts || value.text.empty()) continue;
    // Not known before the job has its GPUs.
    if (value.key == kBatchKey && value.text.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    const bool by_default = value.key == "data.packing" && value.origin == "default";
    const bool packs = by_default && IsFolderOfDocuments(options.file);
    options.values.try_emplace(value.key, packs ? "true" : value.text);
  }
  return absl::OkStatus();
}

ExitCode CheckData(Connection& connection, DataCheckOptions options, bool json) {
  std::erase_if(options.values, [](const auto& each) { return each.second.empty(); });
  if (options.sequence_length)
    options.values[std::string(kLengthKey)] = std::to_string(*options.sequence_length);
  if (options.batch) options.values[std::string(kBatchKey)] = std::to_string(*options.batch);
  if (options.packing) options.values["data.packing"] = "true";
  options.named_model = !options.Value(kModelKey).empty();
  options.of_job =
      !options.job.empty() ||
      std::ranges::any_of(options.values, [](const auto& each) { return IsOfRows(each.first); });
  if (!options.job.empty()) {
    if (const absl::Status read = TakeFromJob(options); !read.ok()) {
      return FailHere(connection, kUsage, std::string(Message(read)));
    }
  }
  if (NamesFolder(options.file)) return CheckFolder(connection, std::move(options), json);
  return CheckFile(connection, options, json);
}

void AddRowFlags(Command* check, DataCheckOptions& options) {
  const auto add = [&](const char* flag, std::string_view key, const char* help) {
    return check->AddOption(flag, options.values[std::string(key)], help);
  };
  add("--columns", "data.columns", "As data.columns: prompt=ask,completion=reply");
  add("--roles", "data.roles", "As data.roles: user=customer");
  add("--chat-template", "data.chat_template", "As data.chat_template");
  add("--template-date", "data.template_date",
      "As data.template_date: 2026-11-26; by default today's, in UTC");
  check->AddOption("--template-argument", options.template_arguments,
                   "NAME=VALUE, one of data.template_arguments; may be given several times");
  add("--alpaca-prompt", "data.alpaca_prompt", "As data.alpaca_prompt")
      ->Among({"template", "stanford"});
  add("--text-documents", "data.text_documents", "As data.text_documents")
      ->Among({"whole", "blank_lines"});
  add("--loss-on", "data.loss_on",
      "As data.loss_on: assistant or all; by default as in a job with that loss");
  add("--loss", kLossKey, "As training.loss: sft (the default), dpo, orpo, simpo or kto");
  add("--on-long-rows", "data.on_long_rows",
      "As data.on_long_rows: what becomes of rows that are too long is told");
  add("--val-split", "data.val_split", "As data.val_split: 0.05 or \"500 rows\"");
  add("--dedup", "data.dedup", "As data.dedup: exact or prompt");
  check->AddFlag("--packing", options.packing, "As data.packing = true");
}

}  // namespace

void AddData(Command& app, Session& session) {
  Command* data = app.AddCommand("data", "Look at training data before a job",
                                 "sftctl data check train.jsonl --model ~/models/Qwen/Qwen3-8B");
  data->RequireCommand();
  Command* check = data->AddCommand(
      "check",
      "Say what a file's rows are: forms, bad rows by line, and, with a model's tokenizer, tokens, "
      "rows that are too long, padding against packing, and three rows with what is learnt marked. "
      "With a job file, or the flags that stand for its keys, also what that job would train on",
      "sftctl data check train.jsonl --job job.toml --model ~/models/Qwen/Qwen3-8B");
  auto options = std::make_shared<DataCheckOptions>();
  check->AddOption("FILE", options->file,
                   "File or folder with rows (docs/data.md); by default job.data of --job");
  check->AddOption("--job", options->job,
                   "Job file: its rows are read as that job would; flags go before its keys");
  check->AddOption("--model", options->values[std::string(kModelKey)],
                   "Folder of this machine with the model's tokenizer, or a model that a node has "
                   "(`sftctl models`); by default job.model of --job");
  check->AddOption("--sequence-length", options->sequence_length,
                   "Tokens of a sequence (default: the job's, else 2048)");
  check->AddOption("--batch", options->batch,
                   "Rows of a batch, over all GPUs (default: the job's, else 8)");
  AddRowFlags(check, *options);
  check->AddOption(
      "--gpu-type", options->gpu_type,
      "Say how long an epoch takes on one of these: H100, H200, A100, L40S, RTX4090, ...");
  AddJsonFlag(check, session);
  check->Check([options] {
    const std::string loss = options->Loss(), loss_on = options->Value("data.loss_on");
    if (options->file.empty() && options->job.empty())
      return "FILE: name a file, or a job with --job";
    if (loss != "sft" && data::LearnsOf(loss) == data::Learns::kTexts) {
      return "--loss must be sft, dpo, orpo, simpo or kto";
    }
    if (!loss_on.empty() && loss_on != "assistant" && loss_on != "all") {
      return "--loss-on must be assistant or all";
    }
    const bool fits = options->sequence_length.value_or(1) >= 1 && options->batch.value_or(1) >= 1;
    return fits ? "" : "--sequence-length and --batch must be at least 1";
  });
  check->RunHere([&session, options](Connection& connection) {
    return CheckData(connection, *options, session.json);
  });
}

}  // namespace sft::client
