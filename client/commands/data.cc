#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <vector>

#include "client/base/packed_folder.h"
#include "client/commands/commands.h"
#include "client/output/text.h"
#include "common/base/env.h"
#include "common/base/json.h"
#include "common/data/dataset_check.h"

namespace sft::client {
namespace {

struct DataCheckOptions {
  std::string file, model, columns, roles, chat_template, template_date, loss_on;
  std::vector<std::string> template_arguments;
  std::string loss = "sft";
  std::string gpu_type;
  std::string name;  // of a folder
  const std::string& shown() const { return name.empty() ? file : name; }
  int64_t sequence_length = 2048, batch = 8;
};

data::RowNames NamesOfColumns(const DataCheckOptions& options) {
  const std::vector<std::string> columns = absl::StrSplit(options.columns, ',', absl::SkipEmpty());
  return data::NamesOf(columns, {});
}

ExitCode FailHere(Connection& connection, ExitCode code, const std::string& message) {
  connection.console().err << "sftctl: " << Lines(message) << "\n";
  return code;
}

// Checks the file alone, as `submit` does.
ExitCode CheckForms(Connection& connection, const DataCheckOptions& options, bool json) {
  const absl::StatusOr<data::DatasetCheck> found = data::CheckDataset(
      options.file, options.file, NamesOfColumns(options), data::LearnsOf(options.loss));
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
    connection.console().err << "sftctl: tokens, lengths and what is learnt are shown with --model "
                                "DIR, a folder with the model's tokenizer\n";
  }
  return data::RowsProblem(*found, /*skips=*/false, /*taken=*/0).empty() ? kSucceeded : kUsage;
}

// sft-data beside this program, else the one that PATH finds.
std::string DataProgram() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const std::filesystem::path beside = self.parent_path() / "sft-data";
    if (std::filesystem::exists(beside, error)) return beside.string();
  }
  return "sft-data";
}

// With the model's tokenizer: the code of `sft-rank prepare`, which is not in this program.
ExitCode CheckTokens(Connection& connection, const DataCheckOptions& options, bool json) {
  const std::string program = DataProgram();
  std::vector<std::string> arguments = {program,
                                        options.file,
                                        "--model",
                                        options.model,
                                        "--sequence-length",
                                        std::to_string(options.sequence_length),
                                        "--batch",
                                        std::to_string(options.batch),
                                        "--loss",
                                        options.loss};
  for (const auto& [flag, value] :
       {std::pair("--columns", &options.columns), std::pair("--roles", &options.roles),
        std::pair("--chat-template", &options.chat_template),
        std::pair("--template-date", &options.template_date),
        std::pair("--loss-on", &options.loss_on)}) {
    if (!value->empty()) arguments.insert(arguments.end(), {flag, *value});
  }
  for (const std::string& argument : options.template_arguments) {
    arguments.insert(arguments.end(), {"--template-argument", argument});
  }
  if (!options.gpu_type.empty()) {
    arguments.insert(arguments.end(), {"--gpu-type", options.gpu_type});
  }
  if (!options.name.empty()) arguments.insert(arguments.end(), {"--name", options.name});
  if (json) arguments.emplace_back("--json");
  if (connection.console().terminal && !GetEnv("NO_COLOR")) arguments.emplace_back("--color");
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  connection.console().out.flush();
  pid_t child = 0;
  const int failed = posix_spawnp(&child, program.c_str(), nullptr, nullptr, words.data(), environ);
  if (failed != 0) {
    return FailHere(connection, kInternal,
                    fmt::format("{}; it comes with sftctl and must stand beside it, or in a folder "
                                "of PATH",
                                Message(ErrnoStatus(program, failed))));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return FailHere(connection, kInternal, "sft-data was lost");
  }
  if (!WIFEXITED(status)) return FailHere(connection, kInternal, "sft-data was killed");
  constexpr int kBadData = 64;  // docs/verdicts.md: the user's
  const int code = WEXITSTATUS(status);
  return code == 0 ? kSucceeded : code == kBadData || code == 2 ? kUsage : kInternal;
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
  return options.model.empty() ? CheckForms(connection, options, json)
                               : CheckTokens(connection, options, json);
}

}  // namespace

void AddData(Command& app, Session& session) {
  Command* data = app.AddCommand("data", "Look at training data before a job",
                                 "sftctl data check train.jsonl --model ~/models/Qwen/Qwen3-8B");
  data->RequireCommand();
  Command* check = data->AddCommand(
      "check",
      "Say what a file's rows are: forms, bad rows by line, and, with a model's tokenizer, tokens, "
      "rows that are too long, padding against packing, and three rows with what is learnt marked",
      "sftctl data check train.jsonl --model ~/models/Qwen/Qwen3-8B --sequence-length 4096");
  auto options = std::make_shared<DataCheckOptions>();
  check->AddOption("FILE", options->file, "File or folder with rows (docs/data.md)")->Required();
  check->AddOption("--model", options->model, "Folder of this machine with the model's tokenizer");
  check->AddOption("--sequence-length", options->sequence_length, "Tokens of a sequence")
      ->ShowDefault();
  check->AddOption("--batch", options->batch, "Rows of a batch, over all GPUs")->ShowDefault();
  check->AddOption("--columns", options->columns, "As data.columns: prompt=ask,completion=reply");
  check->AddOption("--roles", options->roles, "As data.roles: user=customer");
  check->AddOption("--chat-template", options->chat_template, "As data.chat_template");
  check->AddOption("--template-date", options->template_date,
                   "As data.template_date: 2026-11-26; by default today's, in UTC");
  check->AddOption("--template-argument", options->template_arguments,
                   "NAME=VALUE, one of data.template_arguments; may be given several times");
  check->AddOption(
      "--gpu-type", options->gpu_type,
      "Say how long an epoch takes on one of these: H100, H200, A100, L40S, RTX4090, ...");
  check->AddOption("--loss-on", options->loss_on,
                   "As data.loss_on: assistant or all; by default as in a job with that loss");
  check->AddOption("--loss", options->loss, "As training.loss: sft, dpo, orpo, simpo or kto")
      ->ShowDefault();
  AddJsonFlag(check, session);
  check->Check([options] {
    if (options->loss != "sft" && data::LearnsOf(options->loss) == data::Learns::kTexts) {
      return "--loss must be sft, dpo, orpo, simpo or kto";
    }
    if (!options->loss_on.empty() && options->loss_on != "assistant" && options->loss_on != "all") {
      return "--loss-on must be assistant or all";
    }
    const bool fits = options->sequence_length >= 1 && options->batch >= 1;
    return fits ? "" : "--sequence-length and --batch must be at least 1";
  });
  check->RunHere([&session, options](Connection& connection) {
    if (NamesFolder(options->file)) return CheckFolder(connection, *options, session.json);
    return options->model.empty() ? CheckForms(connection, *options, session.json)
                                  : CheckTokens(connection, *options, session.json);
  });
}

}  // namespace sft::client
