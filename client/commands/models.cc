#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "client/commands/commands.h"
#include "client/commands/model_list.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "common/base/json.h"
#include "sft/v1/cluster_service.grpc.pb.h"

namespace sft::client {

absl::StatusOr<std::vector<v1::NodeModel>> AllModels(Connection& connection) {
  std::vector<v1::NodeModel> models;
  v1::ListModelsRequest request;
  do {
    SFT_ASSIGN_OR_RETURN(const v1::ListModelsResponse page,
                         connection.Call(&v1::ClusterService::Stub::ListModels, request));
    models.insert(models.end(), page.models().begin(), page.models().end());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return models;
}

namespace {

// "2 x H100", "does not fit 64 x L4".
std::string GpusText(const v1::ModelNeed& need) {
  if (need.gpus() == 0) return fmt::format("does not fit 64 x {}", need.gpu_type());
  return fmt::format("{} x {}", need.gpus(), need.gpu_type());
}

// "QLoRA 6.10 GB on 1 x H100", for the fleet's GPUs with the most memory: others are told of a
// model by itself.
std::string NeedText(const v1::NodeModel& model, bool smallest) {
  std::string text;
  for (const v1::ModelNeed& need : model.needs()) {
    if (need.smallest() != smallest || need.gpu_type() != model.needs(0).gpu_type()) continue;
    text += fmt::format("{}{} {} {}{}", text.empty() ? "" : "; ", need.method(),
                        Bytes(need.memory_bytes()), need.gpus() == 0 ? "" : "on ", GpusText(need));
  }
  return text.empty() ? "-" : text;
}

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

// "135M", "8.19B": billions, as the names of models have them.
std::string Parameters(int64_t parameters) {
  std::string text = Count(static_cast<double>(parameters));
  if (text.back() == 'G') text.back() = 'B';
  return text;
}

// "8.19B", "30.53B, 3.35B active".
std::string ParametersText(const v1::NodeModel& model) {
  if (model.parameters() == 0) return "-";
  std::string text = Parameters(model.parameters());
  const int64_t active = model.active_parameters();
  if (active > 0 && active < model.parameters())
    text += fmt::format(", {} active", Parameters(active));
  return text;
}

// "12.3k", "8.10k from peaks".
std::string SpeedText(const v1::ModelNeed& need) {
  if (need.tokens_per_second() <= 0) return "-";
  return Count(need.tokens_per_second()) + (need.speed_from_peaks() ? " (from peaks)" : "");
}

void PrintList(Connection& connection, const std::vector<v1::NodeModel>& models) {
  Table table({"MODEL", "NODE", "SIZE", "FAMILY", "PARAMETERS", "STORED AS", "SMALLEST", "FASTEST",
               "PROBLEM", "PATH"});
  bool assumed = false;
  for (const v1::NodeModel& model : models) {
    if (model.has_download()) {
      const v1::ModelDownload& download = model.download();
      table.Add({download.id(), ShortName(model.node()), Bytes(download.bytes_total()), "-", "-",
                 "-", "-", "-",
                 download.problem().empty()
                     ? download.text()
                     : fmt::format("{}: {}", download.text(), download.problem()),
                 ""});
      continue;
    }
    table.Add({model.model().id(), ShortName(model.node()), Bytes(model.model().bytes()),
               OrDash(model.family()), ParametersText(model), OrDash(model.stored()),
               NeedText(model, /*smallest=*/true), NeedText(model, /*smallest=*/false),
               model.model().problem(), model.model().path()});
    assumed = assumed || (model.needs_size() > 0 && model.needs(0).assumed());
  }
  connection.console().out << table.Render();
  if (assumed) {
    connection.console().err << "sftctl: no node has GPUs whose memory is known: what models need "
                                "is told for an H100\n";
  }
}

void PrintModel(Connection& connection, const v1::NodeModel& model) {
  std::ostream& out = connection.console().out;
  const auto line = [&](std::string_view key, const std::string& value) {
    if (!value.empty()) out << fmt::format("{:<14}{}\n", key, OneLine(value));
  };
  line("model", model.model().id());
  line("node", ShortName(model.node()));
  line("folder", model.model().path());
  line("problem", model.model().problem());
  line("family", model.family());
  line("parameters", model.parameters() == 0 ? "" : ParametersText(model));
  line("stored as", model.stored());
  line("download", model.has_download() ? model.download().text() : "");
  line("failed", model.download().problem());
  line("size",
       Bytes(model.has_download() ? model.download().bytes_total() : model.model().bytes()));
  out << "\n";
  if (model.needs_size() == 0) {
    if (!model.family().empty()) out << "its needs were not planned: it has very many layers\n\n";
    return;
  }
  Table table({"FOR", "METHOD", "ROWS", "GPUS", "MEMORY OF EACH", "OF", "TOKENS/S"});
  for (const v1::ModelNeed& need : model.needs()) {
    table.Add({need.smallest() ? "smallest" : "fastest", need.method(),
               fmt::format("{} tokens", need.sequence_length()),
               GpusText(need) + (need.assumed() ? " (an example)" : ""), Bytes(need.memory_bytes()),
               Bytes(need.gpu_memory_bytes()), SpeedText(need)});
  }
  out << table.Render() << "\n";
}

ExitCode Models(Connection& connection, const std::string& name, bool json) {
  auto models = AllModels(connection);
  if (!models.ok()) return Fail(connection, models.status());
  if (!name.empty()) {
    std::erase_if(*models, [&](const v1::NodeModel& model) {
      return model.model().id() != name && model.model().path() != name;
    });
    if (models->empty()) {
      return Fail(connection, NotFound(fmt::format("no node sees model \"{}\"; `sftctl models` "
                                                   "lists those that they see",
                                                   name)));
    }
  }
  if (json) {
    Json list = Json::array();
    for (const v1::NodeModel& model : *models) list.push_back(ModelJson(model));
    connection.console().out << DumpJson(list, 2) << "\n";
  } else if (name.empty()) {
    PrintList(connection, *models);
  } else {
    for (const v1::NodeModel& model : *models) PrintModel(connection, model);
  }
  return kSucceeded;
}

}  // namespace

void AddModels(Command& app, Session& session) {
  Command* models = app.AddCommand("models",
                                   "List the base models that nodes see: family, size, what "
                                   "fine-tuning needs, and why one cannot "
                                   "be used; or show one",
                                   "sftctl models Qwen/Qwen3-8B");
  auto name = std::make_shared<std::string>();
  models->AddOption("MODEL", *name, "Only this model, by its id or folder");
  AddJsonFlag(models, session);
  models->Run(
      [&session, name](Connection& connection) { return Models(connection, *name, session.json); });
  Command* list = models->AddCommand("ls", "The same as `sftctl models`", "sftctl models ls");
  AddJsonFlag(list, session);
  list->Run([&session](Connection& connection) { return Models(connection, "", session.json); });
  AddModelCache(*models, session);
}

}  // namespace sft::client
