#include "server/core/job_intake.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/ids.h"
#include "common/io/sha256.h"
#include "common/spec/job_json.h"
#include "server/core/convert.h"
#include "server/core/reconciler.h"
#include "server/state/names.h"
#include "server/store/files.h"
#include "server/store/nodes.h"

namespace sft::server {
namespace {

spec::OverrideKind KindOf(v1::Override::Kind kind) {
  switch (kind) {
    case v1::Override::ENVIRONMENT:
      return spec::OverrideKind::kEnvironment;
    case v1::Override::FLAG:
      return spec::OverrideKind::kFlag;
    default:
      return spec::OverrideKind::kSet;
  }
}

int LineOf(const spec::Resolution& resolution, std::string_view key) {
  for (const spec::ResolvedValue& value : resolution.values) {
    if (value.key != key) continue;
    const size_t colon = value.origin.rfind(':');
    const std::string digits = colon == value.origin.npos ? "" : value.origin.substr(colon + 1);
    const bool is_line =
        !digits.empty() && digits.size() < 8 &&
        std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
    return is_line ? std::stoi(digits) : 0;
  }
  return 0;
}

void AddProblem(spec::Resolution& resolution, const std::string& key, std::string message) {
  resolution.problems.push_back({key, LineOf(resolution, key), std::move(message)});
}

std::string ValuesToJson(const spec::Resolution& resolution) {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& value : resolution.values) json.push_back({value.key, value.text, value.origin});
  return json.dump();
}

std::string WarningsToJson(const spec::Resolution& resolution) {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& warning : resolution.warnings) {
    json.push_back({warning.key, warning.line, warning.message});
  }
  return json.dump();
}

void ToProto(const spec::Problem& problem, v1::Problem& proto) {
  proto.set_key(problem.key);
  proto.set_line(problem.line);
  proto.set_message(problem.message);
}

// Everything a request says, so that a repeat can be told from another job.
std::string RequestHash(const v1::SubmitJobRequest& request) {
  v1::SubmitJobRequest said = request;
  said.clear_request_id();
  return io::Sha256Hex(said.SerializeAsString());
}

JobRecord MakeJob(const v1::SubmitJobRequest& request, const spec::Resolution& resolution,
                  const std::string& principal) {
  const spec::JobSpec& spec = resolution.spec;
  JobRecord job;
  job.id = RandomId("job");
  job.project = request.project().empty() ? kDefaultProject : request.project();
  job.owner = principal;
  job.display_name = spec.job.name;
  job.variant = spec.compute.variant;
  job.gpu_type = spec.compute.gpu_type;
  job.gpus_per_node = spec.compute.gpus_per_node;
  job.nodes = spec.compute.nodes;
  job.model = spec.job.model;
  job.source_text = request.source_text();
  job.file_name = request.file_name();
  job.resolved_json = spec::ToJson(spec).dump();
  job.resolved_values = ValuesToJson(resolution);
  job.warnings = WarningsToJson(resolution);
  job.request_id = request.request_id();
  job.request_hash = RequestHash(request);
  return job;
}

// The most slots of each type on one node.
std::map<std::string, int> LargestByType(const std::vector<NodeRecord>& nodes) {
  std::map<std::string, int> largest;
  for (const NodeRecord& node : nodes) {
    std::map<std::string, int> count;
    for (const SlotRecord& slot : node.slots) ++count[slot.gpu_type];
    for (const auto& [type, slots] : count) largest[type] = std::max(largest[type], slots);
  }
  return largest;
}

void CheckVariant(const std::map<std::string, int>& largest, spec::Resolution& resolution) {
  const auto& compute = resolution.spec.compute;
  const auto found = largest.find(compute.gpu_type);
  if (found == largest.end()) {
    std::vector<std::string> known;
    for (const auto& [type, most] : largest) known.push_back(fmt::format("{}-{}x", type, most));
    AddProblem(resolution, "compute.gpu_type",
               fmt::format("no node has {}; there is up to: {}", compute.gpu_type,
                           known.empty() ? "nothing" : fmt::format("{}", fmt::join(known, ", "))));
  } else if (compute.gpus_per_node > found->second) {
    AddProblem(resolution, "compute.variant",
               fmt::format("no node has {}-{}x; the largest is {}-{}x", compute.gpu_type,
                           compute.gpus_per_node, compute.gpu_type, found->second));
  }
}

absl::Status CheckModel(Database& db, spec::Resolution& resolution) {
  const std::string& model = resolution.spec.job.model;
  SFT_ASSIGN_OR_RETURN(const std::vector<ModelRecord> found, store::FindModel(db, model));
  if (!found.empty()) {
    // Usable ones come first.
    if (!found.front().problem.empty()) {
      AddProblem(resolution, "job.model",
                 fmt::format("model {} on {} cannot be used: {}", model, found.front().node,
                             found.front().problem));
    }
    return absl::OkStatus();
  }
  if (IsModelPath(model)) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const std::vector<ModelRecord> all, store::ListModels(db, 0, 100));
  std::set<std::string> seen;
  for (const ModelRecord& each : all) seen.insert(each.id);
  AddProblem(
      resolution, "job.model",
      fmt::format("no node sees model \"{}\" (seen: {}); put it below a --models folder of a "
                  "worker, or give a directory on the nodes",
                  model, seen.empty() ? "none" : fmt::format("{}", fmt::join(seen, ", "))));
  return absl::OkStatus();
}

}  // namespace

absl::Status JobIntake::CheckFleet(Database& db, spec::Resolution& resolution) {
  SFT_ASSIGN_OR_RETURN(const std::vector<NodeRecord> nodes,
                       store::ListNodes(db, "", store::kMaxPage));
  // Before the first worker has come nothing is known, and the job waits and says so.
  if (nodes.empty()) return absl::OkStatus();
  CheckVariant(LargestByType(nodes), resolution);
  SFT_RETURN_IF_ERROR(CheckModel(db, resolution));
  if (!resolution.ok()) return absl::OkStatus();
  const absl::Status fits = planner_.CheckFits(db, resolution.spec);
  if (absl::IsResourceExhausted(fits)) {
    AddProblem(resolution, "compute.gpu_type", std::string(Message(fits)));
    return absl::OkStatus();
  }
  return fits;
}

absl::StatusOr<spec::Resolution> JobIntake::Read(const std::string& text,
                                                 const std::string& file_name,
                                                 const Overrides& overrides) {
  if (text.size() > kMaxSourceBytes) {
    return InvalidArgument(fmt::format("{} is larger than 1 MiB: it is no job file", file_name));
  }
  std::vector<spec::Override> list;
  for (const v1::Override& override : overrides) {
    list.push_back({override.key(), override.value(), override.origin(), KindOf(override.kind())});
  }
  spec::ResolveOptions options;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const std::vector<NodeRecord> nodes,
                         store::ListNodes(db, "", store::kMaxPage));
    const std::map<std::string, int> types = LargestByType(nodes);
    if (types.size() == 1) options.default_gpu_type = types.begin()->first;
    return absl::OkStatus();
  }));
  spec::Resolution resolution = spec::Resolve(text, file_name, list, options);
  if (resolution.ok()) {
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) { return CheckFleet(db, resolution); }));
  }
  return resolution;
}

absl::StatusOr<v1::ResolveJobResponse> JobIntake::Resolve(const v1::ResolveJobRequest& request) {
  SFT_ASSIGN_OR_RETURN(const spec::Resolution resolution,
                       Read(request.source_text(), request.file_name(), request.overrides()));
  v1::ResolveJobResponse response;
  for (const auto& problem : resolution.problems) ToProto(problem, *response.add_problems());
  for (const auto& warning : resolution.warnings) ToProto(warning, *response.add_warnings());
  for (const auto& value : resolution.values) {
    auto* added = response.add_resolved();
    added->set_key(value.key);
    added->set_value(value.text);
    added->set_origin(value.origin);
  }
  if (!resolution.ok()) return response;
  response.set_resolved_json(spec::ToJson(resolution.spec).dump());
  for (const spec::NeededFile& file : spec::NeededFiles(resolution)) {
    auto* added = response.add_needed_files();
    added->set_key(file.key);
    added->set_path(file.path);
    added->set_from_override(file.from_override);
  }
  *response.mutable_plan() = planner_.Plan(resolution.spec);
  return response;
}

absl::StatusOr<std::vector<JobFileRecord>> JobIntake::CheckFiles(
    const v1::SubmitJobRequest& request, const spec::Resolution& resolution,
    std::vector<std::string>& missing) {
  std::vector<JobFileRecord> files;
  for (const spec::NeededFile& needed : spec::NeededFiles(resolution)) {
    const auto sent =
        std::find_if(request.files().begin(), request.files().end(),
                     [&](const v1::JobFile& file) { return file.key() == needed.key; });
    std::optional<DatasetRecord> dataset;
    if (sent != request.files().end() && blobs_.PathOf(sent->sha256()).ok()) {
      SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
        SFT_ASSIGN_OR_RETURN(dataset, store::FindDataset(db, sent->sha256()));
        return absl::OkStatus();
      }));
    }
    if (!dataset.has_value()) {
      missing.push_back(needed.key);
      continue;
    }
    files.push_back({needed.key, dataset->sha256, dataset->size, sent->client_path(), ""});
  }
  const auto add_node_path = [&](const std::string& key, const std::string& value) {
    const std::string_view path = spec::NodePath(value);
    if (!path.empty()) files.push_back({key, "", 0, "", std::string(path)});
  };
  add_node_path("job.data", resolution.spec.job.data);
  add_node_path("data.val", resolution.spec.data.val);
  return files;
}

absl::StatusOr<JobIntake::Outcome> JobIntake::Submit(const v1::SubmitJobRequest& request,
                                                     const std::string& principal) {
  if (!request.project().empty() && !IsValidLabel(request.project())) {
    return InvalidArgument(fmt::format("project \"{}\" is not a name", request.project()));
  }
  if (request.request_id().size() > 128)
    return InvalidArgument("a request id has at most 128 bytes");
  SFT_ASSIGN_OR_RETURN(const spec::Resolution resolution,
                       Read(request.source_text(), request.file_name(), request.overrides()));
  Outcome outcome;
  outcome.problems = resolution.problems;
  if (!outcome.problems.empty()) return outcome;
  JobRecord job = MakeJob(request, resolution, principal);
  if (request.validate_only()) {
    job.id.clear();
    outcome.job = server::ToProto(job);
    outcome.job.clear_name();
    return outcome;
  }
  SFT_ASSIGN_OR_RETURN(const std::vector<JobFileRecord> files,
                       CheckFiles(request, resolution, outcome.missing_files));
  if (!outcome.missing_files.empty()) return outcome;
  SFT_ASSIGN_OR_RETURN(outcome.job, jobs_.Submit(std::move(job), files));
  return outcome;
}

}  // namespace sft::server
