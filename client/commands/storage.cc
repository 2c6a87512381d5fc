#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <map>

#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "common/base/json.h"
#include "sft/v1/storage_service.grpc.pb.h"

namespace sft::client {
namespace {

struct RemoveOptions {
  std::string name;
  bool logs = false, metrics = false, artifacts = false, checkpoints = false;
  bool dry_run = false, force = false;
};

std::string KindText(v1::StoredKind kind) {
  switch (kind) {
    case v1::DATASETS:
      return "data sets";
    case v1::ARTIFACTS:
      return "artifacts";
    case v1::CHECKPOINTS:
      return "checkpoints";
    case v1::LOGS:
      return "logs";
    case v1::METRICS:
      return "metrics";
    case v1::UPLOADS:
      return "uploads";
    case v1::DAMAGED:
      return "damaged";
    case v1::BACKUPS:
      return "backups";
    case v1::DATABASE:
      return "database";
    default:
      return v1::StoredKind_Name(kind);
  }
}

Json KindsJson(const google::protobuf::RepeatedPtrField<v1::KindUse>& kinds) {
  Json list = Json::array();
  for (const v1::KindUse& use : kinds) {
    list.push_back({{"kind", v1::StoredKind_Name(use.kind())},
                    {"items", use.items()},
                    {"bytes", use.bytes()}});
  }
  return list;
}

Json QuotaJson(const v1::StorageQuota& quota) {
  return {{"project", quota.project()},
          {"dataset_bytes", quota.dataset_bytes()},
          {"dataset_used", quota.dataset_used()},
          {"artifact_bytes", quota.artifact_bytes()},
          {"artifact_used", quota.artifact_used()}};
}

Json ItemJson(const v1::StoredItem& item) {
  return {{"name", item.name()},
          {"kind", v1::StoredKind_Name(item.kind())},
          {"bytes", item.bytes()},
          {"project", item.project()},
          {"owner", item.owner()},
          {"display_name", item.display_name()},
          {"last_use", item.has_last_use() ? Json(Utc(item.last_use())) : Json(nullptr)},
          {"live_jobs", item.live_jobs()},
          {"jobs", item.jobs()},
          {"node", item.node()}};
}

Json StorageJson(const v1::Storage& storage) {
  Json projects = Json::array();
  for (const v1::ProjectUse& project : storage.projects()) {
    projects.push_back(
        {{"project", project.project()},
         {"kinds", KindsJson(project.kinds())},
         {"quota", project.has_quota() ? QuotaJson(project.quota()) : Json(nullptr)}});
  }
  Json biggest = Json::array();
  for (const v1::StoredItem& item : storage.biggest()) biggest.push_back(ItemJson(item));
  const v1::NodeDisk& disk = storage.disk();
  return {{"measured", Utc(storage.measured())},
          {"disk",
           {{"total_bytes", disk.total_bytes()},
            {"free_bytes", disk.free_bytes()},
            {"level", v1::NodeDisk::Level_Name(disk.level())},
            {"low_bytes", disk.low_bytes()},
            {"full_bytes", disk.full_bytes()}}},
          {"kinds", KindsJson(storage.kinds())},
          {"projects", projects},
          {"biggest", biggest}};
}

// "1.2 GB of 10 GB"
std::string UsageText(int64_t used, int64_t quota) {
  return quota == 0 ? Bytes(used) : fmt::format("{} of {}", Bytes(used), Bytes(quota));
}

std::string ProjectText(const v1::ProjectUse& project, v1::StoredKind kind) {
  int64_t used = 0;
  for (const v1::KindUse& use : project.kinds()) used += use.kind() == kind ? use.bytes() : 0;
  const v1::StorageQuota& quota = project.quota();
  return UsageText(used, kind == v1::DATASETS    ? quota.dataset_bytes()
                         : kind == v1::ARTIFACTS ? quota.artifact_bytes()
                                                 : 0);
}

std::string NeededText(const v1::StoredItem& item) {
  if (item.kind() == v1::DATASETS) {
    if (item.jobs() == 0) return "no job";
    return fmt::format("{} job{}, {} of them live", item.jobs(), item.jobs() == 1 ? "" : "s",
                       item.live_jobs());
  }
  if (!item.node().empty()) return "lies on " + item.node();
  return item.live_jobs() > 0 ? "its job has not ended" : "";
}

void PrintStorage(Connection& connection, const v1::Storage& storage) {
  std::ostream& out = connection.console().out;
  const v1::NodeDisk& disk = storage.disk();
  out << fmt::format("disk: {} of {} free; told below {}, intake refused below {}: {}\n\n",
                     Bytes(disk.free_bytes()), Bytes(disk.total_bytes()), Bytes(disk.low_bytes()),
                     Bytes(disk.full_bytes()), v1::NodeDisk::Level_Name(disk.level()));
  Table kinds({"KIND", "ITEMS", "SIZE"});
  for (const v1::KindUse& use : storage.kinds()) {
    kinds.Add({KindText(use.kind()), std::to_string(use.items()), Bytes(use.bytes())});
  }
  out << kinds.Render() << "\n";
  Table projects({"PROJECT", "DATA SETS", "ARTIFACTS", "CHECKPOINTS", "LOGS", "METRICS"});
  for (const v1::ProjectUse& project : storage.projects()) {
    projects.Add({project.project(), ProjectText(project, v1::DATASETS),
                  ProjectText(project, v1::ARTIFACTS), ProjectText(project, v1::CHECKPOINTS),
                  ProjectText(project, v1::LOGS), ProjectText(project, v1::METRICS)});
  }
  out << projects.Render() << "\n";
  Table biggest({"SIZE", "KIND", "NAME", "PROJECT", "OWNER", "LAST USE", "NEEDED BY", "CALLED"});
  for (const v1::StoredItem& item : storage.biggest()) {
    biggest.Add({Bytes(item.bytes()), KindText(item.kind()), item.name(), item.project(),
                 item.owner(), item.has_last_use() ? Utc(item.last_use()) : "-", NeededText(item),
                 item.display_name()});
  }
  out << biggest.Render();
}

ExitCode Storage(Connection& connection, int biggest, bool json) {
  v1::GetStorageRequest request;
  request.set_biggest(biggest);
  const auto storage = connection.Call(&v1::StorageService::Stub::GetStorage, request);
  if (!storage.ok()) return Fail(connection, storage.status());
  if (json) {
    connection.console().out << DumpJson(StorageJson(*storage), 2) << "\n";
  } else {
    PrintStorage(connection, *storage);
  }
  return kSucceeded;
}

ExitCode Remove(Connection& connection, const RemoveOptions& options, bool json) {
  v1::RemoveStoredRequest request;
  request.set_name(options.name);
  request.set_dry_run(options.dry_run);
  request.set_force(options.force);
  const std::pair<bool, v1::StoredKind> kinds[] = {{options.logs, v1::LOGS},
                                                   {options.metrics, v1::METRICS},
                                                   {options.artifacts, v1::ARTIFACTS},
                                                   {options.checkpoints, v1::CHECKPOINTS}};
  for (const auto& [wanted, kind] : kinds) {
    if (wanted) request.add_kinds(kind);
  }
  const auto done = connection.Call(&v1::StorageService::Stub::RemoveStored, request);
  if (!done.ok()) return Fail(connection, done.status());
  if (json) {
    Json removed = Json::array();
    for (const v1::StoredItem& item : done->removed()) removed.push_back(ItemJson(item));
    connection.console().out << DumpJson(Json{{"dry_run", options.dry_run},
                                              {"freed_bytes", done->freed_bytes()},
                                              {"removed", removed},
                                              {"notes", done->notes()}},
                                         2)
                             << "\n";
    return kSucceeded;
  }
  const char* verb = options.dry_run ? "would remove" : "removed";
  for (const v1::StoredItem& item : done->removed()) {
    connection.console().out << OneLine(fmt::format("{} {} {} ({})", verb, KindText(item.kind()),
                                                    item.name(), Bytes(item.bytes())))
                             << "\n";
  }
  connection.console().out << fmt::format("{} {}\n", options.dry_run ? "would free" : "freed",
                                          Bytes(done->freed_bytes()));
  for (const std::string& note : done->notes()) {
    connection.console().err << OneLine(note) << "\n";
  }
  return kSucceeded;
}

// "10GB", "1.5TB", "off"
absl::StatusOr<int64_t> ParseSize(const std::string& text) {
  static const std::map<std::string, double> kUnits = {{"", 1},     {"B", 1},    {"KB", 1e3},
                                                       {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
  if (text == "off") return 0;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto unit = kUnits.find(std::string(end, text.data() + text.size()));
  if (error != std::errc() || unit == kUnits.end() || !(number > 0) || number > 1e12) {
    return InvalidArgument(
        fmt::format("'{}' is not a size: must be a number with KB, MB, GB or TB, or off", text));
  }
  return static_cast<int64_t>(number * unit->second);
}

ExitCode ListQuotas(Connection& connection, bool json) {
  const auto list =
      connection.Call(&v1::StorageService::Stub::ListStorageQuotas, v1::ListStorageQuotasRequest());
  if (!list.ok()) return Fail(connection, list.status());
  Json all = Json::array();
  Table table({"PROJECT", "DATA SETS", "ARTIFACTS"});
  for (const v1::StorageQuota& quota : list->quotas()) {
    all.push_back(QuotaJson(quota));
    table.Add({quota.project(), UsageText(quota.dataset_used(), quota.dataset_bytes()),
               UsageText(quota.artifact_used(), quota.artifact_bytes())});
  }
  connection.console().out << (json ? DumpJson(all, 2) + "\n" : table.Render());
  return kSucceeded;
}

struct QuotaOptions {
  std::string project, datasets, artifacts;
};

ExitCode SetQuota(Connection& connection, const QuotaOptions& options, bool json) {
  v1::SetStorageQuotaRequest request;
  request.set_project(options.project);
  if (!options.datasets.empty()) {
    const auto bytes = ParseSize(options.datasets);
    if (!bytes.ok()) return Fail(connection, bytes.status());
    request.set_dataset_bytes(*bytes);
  }
  if (!options.artifacts.empty()) {
    const auto bytes = ParseSize(options.artifacts);
    if (!bytes.ok()) return Fail(connection, bytes.status());
    request.set_artifact_bytes(*bytes);
  }
  const auto quota = connection.Call(&v1::StorageService::Stub::SetStorageQuota, request);
  if (!quota.ok()) return Fail(connection, quota.status());
  if (json) {
    connection.console().out << DumpJson(QuotaJson(*quota), 2) << "\n";
  } else {
    connection.console().out << fmt::format(
        "{}: data sets {}, artifacts {}\n", OneLine(quota->project()),
        UsageText(quota->dataset_used(), quota->dataset_bytes()),
        UsageText(quota->artifact_used(), quota->artifact_bytes()));
  }
  return kSucceeded;
}

}  // namespace

void AddStorage(Command& app, Session& session) {
  Command* storage = app.AddCommand("storage", "Show what uses the server's disk, and who owns it",
                                    "sftctl storage --biggest 50");
  auto biggest = std::make_shared<int>(20);
  storage->AddOption("--biggest", *biggest, "Number of the largest items to list")
      ->WholeNumber(1)
      ->ShowDefault();
  AddJsonFlag(storage, session);
  storage->Run([&session, biggest](Connection& connection) {
    return Storage(connection, *biggest, session.json);
  });
  Command* rm = app.AddCommand("rm",
                               "Remove what an ended job left, a data set, an artifact or a "
                               "backup, and print what that frees",
                               "sftctl rm job-abc --logs --dry-run");
  auto options = std::make_shared<RemoveOptions>();
  rm->AddOption("NAME", options->name,
                "A job, dataset:SHA256, artifact:ID or backup:NAME, as `sftctl storage` shows them")
      ->Required();
  rm->AddFlag("--logs", options->logs,
              "For a job: remove only its logs (these flags may be combined)");
  rm->AddFlag("--metrics", options->metrics, "For a job: remove only its curve");
  rm->AddFlag("--artifacts", options->artifacts,
              "For a job: remove only the artifacts that it delivered");
  rm->AddFlag("--checkpoints", options->checkpoints, "For a job: remove only its checkpoints");
  rm->AddFlag("--dry-run", options->dry_run, "Print what would be removed; remove nothing");
  rm->AddFlag("--force", options->force, "Remove a data set even if ended jobs name it");
  AddJsonFlag(rm, session);
  rm->Run([&session, options](Connection& connection) {
    return Remove(connection, *options, session.json);
  });
}

void AddStorageQuotas(Command& admin, Session& session) {
  Command* quota = admin.AddCommand("quota", "Storage limits of projects",
                                    "sftctl admin quota set research --datasets 500GB");
  quota->RequireCommand();
  Command* list =
      quota->AddCommand("list", "List the storage limits of projects and how much of them is used",
                        "sftctl admin quota list --json");
  AddJsonFlag(list, session);
  list->Run([&session](Connection& connection) { return ListQuotas(connection, session.json); });
  Command* set =
      quota->AddCommand("set", "Set the storage limits of a project",
                        "sftctl admin quota set research --datasets 500GB --artifacts off");
  auto options = std::make_shared<QuotaOptions>();
  set->AddOption("PROJECT", options->project, "Project")->Required();
  set->AddOption("--datasets", options->datasets, "Limit for data sets: 500GB, 2TB, off");
  set->AddOption("--artifacts", options->artifacts, "Limit for artifacts that the server keeps");
  AddJsonFlag(set, session);
  set->Run([&session, options](Connection& connection) {
    return SetQuota(connection, *options, session.json);
  });
}

}  // namespace sft::client
