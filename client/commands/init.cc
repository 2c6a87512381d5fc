#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "client/base/templates.h"
#include "client/commands/commands.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "common/base/edit_distance.h"
#include "common/base/json.h"
#include "common/io/file.h"
#include "common/spec/resolve.h"

namespace sft::client {
namespace {

struct InitOptions {
  std::string name;
  std::string file;
  std::optional<std::string> model, data;
  bool list = false, force = false;
};

// "qlora-8b" of qlora_8b.toml.
std::string TemplateName(std::string_view file_name) {
  std::string name(file_name.substr(0, file_name.rfind('.')));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

spec::Resolution ResolveTemplate(const Template& file) {
  return spec::Resolve(file.text, file.file_name, {});
}

// The first sentence of the comment that a file begins with.
std::string AboutTemplate(std::string_view text) {
  std::string about;
  while (text.starts_with('#') || text.starts_with("//")) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const size_t begin = line.find_first_not_of("#/ ");
    if (begin == line.npos) break;
    about += (about.empty() ? "" : " ") + std::string(line.substr(begin));
    const size_t end = about.find(". ");
    if (end != about.npos) return about.substr(0, end);
  }
  if (about.ends_with('.')) about.pop_back();
  return about;
}

std::string GroupOfTemplate(const spec::JobSpec& job) {
  if (!job.trains()) return job.job.kind;
  if (job.prefers()) return "preferences";
  if (job.full_finetune()) return "full fine-tuning";
  return job.qlora() ? "QLoRA" : "LoRA";
}

ExitCode ListTemplates(Connection& connection, bool json) {
  Json list = Json::array();
  std::map<std::string, Table> groups;
  for (const Template& file : Templates()) {
    const spec::JobSpec job = ResolveTemplate(file).spec;
    const std::string name = TemplateName(file.file_name), about = AboutTemplate(file.text),
                      group = GroupOfTemplate(job);
    list.push_back({{"template", name},
                    {"file", file.file_name},
                    {"group", group},
                    {"model", job.job.model},
                    {"variant", job.compute.variant},
                    {"about", about}});
    const auto at = groups.try_emplace(group, std::vector<std::string>{group, "RUNS ON", "ABOUT"});
    at.first->second.Add({name, job.compute.variant, about});
  }
  if (json) {
    connection.console().out << DumpJson(list, 2) << "\n";
    return kSucceeded;
  }
  const char* gap = "";
  for (const auto& [name, table] : groups) {
    connection.console().out << gap << table.Render();
    gap = "\n";
  }
  return kSucceeded;
}

absl::StatusOr<Template> FindTemplate(const std::string& asked) {
  std::string nearest;
  size_t best = SuggestionLimit(asked) + 1;
  for (const Template& file : Templates()) {
    const std::string name = TemplateName(file.file_name);
    if (asked == file.file_name || TemplateName(asked + ".") == name) return file;
    const size_t distance = EditDistance(asked, name);
    if (distance < best) best = distance, nearest = name;
  }
  return NotFound(fmt::format(
      "no template is called \"{}\"{}", asked,
      nearest.empty() ? "; `sftctl init --list` shows them" : "; did you mean " + nearest + "?"));
}

// Puts `written` where the file has the value of `key`; the comment behind it stays. Where its line
// begins; nothing where the file does not have the key.
absl::StatusOr<std::optional<size_t>> Replace(std::string_view file_name, const std::string& key,
                                              const std::string& written, std::string* text) {
  const spec::Resolution resolution = spec::Resolve(*text, file_name, {});
  const auto old = std::find_if(resolution.values.begin(), resolution.values.end(),
                                [&](const spec::ResolvedValue& each) { return each.key == key; });
  if (old == resolution.values.end() || old->line == 0) return std::nullopt;
  size_t at = 0;
  for (int line = 1; line < old->line; ++line) at = text->find('\n', at) + 1;
  const size_t end = std::min(text->find('\n', at), text->size());
  for (const std::string& known : {DumpJson(Json(old->text)), "'" + old->text + "'", old->text}) {
    const size_t found = text->find(known, at);
    if (found == std::string::npos || found >= end) continue;
    text->replace(found, known.size(), written);
    return at;
  }
  return Internal(fmt::format("{}:{} does not hold {} as text", file_name, old->line, key));
}

absl::Status FillIn(std::string_view file_name, const std::string& key, const std::string& value,
                    std::string* text) {
  // What JSON writes is a string of TOML and YAML, too.
  SFT_ASSIGN_OR_RETURN(const std::optional<size_t> line,
                       Replace(file_name, key, DumpJson(Json(value)), text));
  if (line) return absl::OkStatus();
  return InvalidArgument(fmt::format("{} has no {}", file_name, key));
}

// A template's file of validation rows fits its own data alone: of other rows some are held out.
absl::Status HoldOut(std::string_view file_name, std::string* text) {
  SFT_ASSIGN_OR_RETURN(const std::optional<size_t> line,
                       Replace(file_name, "data.val", "0.1", text));
  if (line) text->replace(text->find("val", *line), 3, "val_split");
  return absl::OkStatus();
}

absl::StatusOr<std::string> FilledIn(const Template& file, const InitOptions& options) {
  std::string text(file.text);
  struct Given {
    const char *key, *flag;
    const std::optional<std::string>& value;
  };
  for (const Given& given :
       {Given{"job.model", "--model", options.model}, Given{"job.data", "--data", options.data}}) {
    if (!given.value) continue;
    if (given.value->empty()) return InvalidArgument(fmt::format("{} is empty", given.flag));
    SFT_RETURN_IF_ERROR(
        Annotate(FillIn(file.file_name, given.key, *given.value, &text), given.flag));
  }
  if (options.data) SFT_RETURN_IF_ERROR(HoldOut(file.file_name, &text));
  const spec::Resolution filled = spec::Resolve(text, file.file_name, {});
  if (filled.ok()) return text;
  const spec::Problem& problem = filled.problems.front();
  return InvalidArgument(fmt::format("{}: {}", problem.key, problem.message));
}

// A job file is read by the form that its name says.
absl::Status CheckEnding(const Template& file, const std::string& path) {
  const std::filesystem::path wanted = std::filesystem::path(file.file_name).extension(),
                              named = std::filesystem::path(path).extension();
  if (wanted == named || (wanted == ".yaml" && named == ".yml")) return absl::OkStatus();
  return InvalidArgument(
      fmt::format("{}: this template's file has to end with {}", path, wanted.string()));
}

ExitCode Init(Connection& connection, const InitOptions& options) {
  const absl::StatusOr<Template> file = FindTemplate(options.name);
  if (!file.ok()) return Fail(connection, file.status());
  const absl::StatusOr<std::string> text = FilledIn(*file, options);
  if (!text.ok()) return Fail(connection, text.status());
  Console& console = connection.console();
  if (options.file.empty()) {
    console.out << *text;
    return kSucceeded;
  }
  if (const absl::Status fits = CheckEnding(*file, options.file); !fits.ok()) {
    return Fail(connection, fits);
  }
  if (io::Exists(options.file)) {
    const absl::Status regular = io::CheckRegularFile(options.file);
    if (!regular.ok()) return Fail(connection, InvalidArgument(Message(regular)));
    if (!options.force) {
      return Fail(connection, InvalidArgument(fmt::format(
                                  "{} is there already: --force replaces it", options.file)));
    }
  }
  if (const absl::Status written = io::WriteFileAtomic(options.file, *text); !written.ok()) {
    return Fail(connection, InvalidArgument(Message(written)));
  }
  const spec::JobSpec job = spec::Resolve(*text, file->file_name, {}).spec;
  console.err << fmt::format(
      "wrote {}: model {}, data {}\nchange what is to be different, then: sftctl submit {} "
      "--dry-run\n",
      options.file, job.job.model, job.job.data.empty() ? "none" : job.job.data, options.file);
  return kSucceeded;
}

}  // namespace

void AddInit(Command& app, Session& session) {
  Command* command = app.AddCommand("init", "Write a job file from a template",
                                    "sftctl init --template qlora-8b --data train.jsonl job.toml");
  auto options = std::make_shared<InitOptions>();
  Option* file = command->AddOption("FILE", options->file, "File to write (default: print it)");
  Option* name = command->AddOption("--template", options->name, "Template (--list)");
  command->AddOption("--model", options->model, "Base model (job.model)")->Needs(name);
  command->AddOption("--data", options->data, "File with the rows (job.data)")->Needs(name);
  command->AddFlag("--force", options->force, "Replace FILE")->Needs(file);
  command->AddFlag("--list", options->list, "List the templates")->Excludes(name);
  AddJsonFlag(command, session);
  command->Check([options, &session] {
    if (session.json && !options->list) return "--json: only --list prints JSON";
    const bool none = !options->list && options->name.empty();
    return none ? "--template: name a template; --list shows them" : "";
  });
  command->RunHere([&session, options](Connection& connection) {
    return options->list ? ListTemplates(connection, session.json) : Init(connection, *options);
  });
}

}  // namespace sft::client
