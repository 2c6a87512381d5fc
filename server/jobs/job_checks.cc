#include "server/jobs/job_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <vector>

#include "common/base/duration.h"
#include "common/hub/model_name.h"
#include "common/spec/grader.h"
#include "common/spec/visit.h"
#include "server/scheduling/scheduler_jobs.h"
#include "server/store/nodes.h"

namespace sft::server {
namespace {

constexpr char kCpuType[] = "CPU";

}  // namespace

const spec::ResolvedValue* FindValue(const spec::Resolution& resolution, std::string_view key) {
  for (const spec::ResolvedValue& value : resolution.values) {
    if (value.key == key) return &value;
  }
  return nullptr;
}

std::string_view KeyOfCount(const spec::Resolution& resolution) {
  for (const char* key : {"compute.variant", "compute.gpus_per_node", "compute.gpu_count"}) {
    const spec::ResolvedValue* value = FindValue(resolution, key);
    if (value != nullptr && (value->line > 0 || value->overridden)) return key;
  }
  return "compute.variant";
}

void AddProblem(spec::Resolution& resolution, std::string_view key, std::string message) {
  const spec::ResolvedValue* value = FindValue(resolution, key);
  if (value == nullptr || value->written_as.empty()) {
    resolution.problems.push_back({std::string(key), 0, std::move(message)});
    return;
  }
  if (value->overridden) message += fmt::format(" (given by {})", value->origin);
  resolution.problems.push_back({value->written_as, value->line, std::move(message)});
}

bool IsFaulty(const spec::Resolution& resolution, std::string_view key) {
  const spec::ResolvedValue* value = FindValue(resolution, key);
  return std::any_of(
      resolution.problems.begin(), resolution.problems.end(), [&](const spec::Problem& problem) {
        return problem.key == key || (value != nullptr && problem.key == value->written_as);
      });
}

void CheckVariant(const FleetCatalog::Fleet& fleet, spec::Resolution& resolution) {
  const auto& compute = resolution.spec.compute;
  if (compute.gpu_type.empty() || IsFaulty(resolution, "compute.gpu_type")) return;
  const auto found = fleet.types.find(compute.gpu_type);
  if (found == fleet.types.end()) {
    std::vector<std::string> known;
    for (const auto& [name, type] : fleet.types) {
      known.push_back(fmt::format("{}-{}x", name, type.most));
    }
    AddProblem(resolution, "compute.gpu_type",
               fmt::format("no node has {}; there is up to: {}", compute.gpu_type,
                           known.empty() ? "nothing" : fmt::format("{}", fmt::join(known, ", "))));
  } else if (compute.gpus_per_node > found->second.most &&
             !IsFaulty(resolution, "compute.variant") &&
             !IsFaulty(resolution, "compute.gpus_per_node")) {
    AddProblem(resolution, KeyOfCount(resolution),
               fmt::format("no node has {}-{}x; the largest is {}-{}x", compute.gpu_type,
                           compute.gpus_per_node, compute.gpu_type, found->second.most));
  }
}

void CheckGraderPrograms(const FleetCatalog::Fleet& fleet, spec::Resolution& resolution) {
  constexpr std::string_view kGrader = "evaluate.grader";
  const bool runs =
      std::ranges::any_of(resolution.spec.evaluate.grader, [](const std::string& item) {
        const absl::StatusOr<spec::Grader> grader = spec::ParseGrader(item);
        return grader.ok() && grader->type == spec::Grader::Type::kCommand;
      });
  if (!runs || fleet.runs_graders || IsFaulty(resolution, kGrader)) return;
  AddProblem(resolution, kGrader,
             "no node runs programs that grade answers: ask an operator to start workers with "
             "--grader-root FOLDER, and to put the program there");
}

absl::Status CheckModel(Store& store, FleetCatalog& fleet, const FolderReader& reader,
                        spec::Resolution& resolution) {
  const std::string& model = resolution.spec.job.model;
  if (model.empty() || IsFaulty(resolution, "job.model")) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const auto found, fleet.FindModel(model));
  if (found != nullptr) {
    SFT_ASSIGN_OR_RETURN(const auto nodes, fleet.Get());
    // What is broken there is downloaded again, by another node if need be.
    if (!found->problem.empty() && !(nodes->downloads && hub::ParseModelName(model))) {
      AddProblem(
          resolution, "job.model",
          fmt::format("model {} on {} cannot be used: {}", model, found->node, found->problem));
    }
    return absl::OkStatus();
  }
  if (IsModelPath(model)) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const auto known, fleet.Get());
  if (known->downloads && hub::ParseModelName(model)) return absl::OkStatus();
  std::set<std::string> seen;
  SFT_RETURN_IF_ERROR(store.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const std::vector<ModelRecord> all, store::ListModels(db, 0, 100));
    for (const ModelRecord& each : all) {
      SFT_ASSIGN_OR_RETURN(const bool shown, MayRead(db, reader, {each.id, each.path}));
      if (shown) seen.insert(each.id);
    }
    return absl::OkStatus();
  }));
  AddProblem(
      resolution, "job.model",
      fmt::format(
          "no node sees model \"{}\" (seen: {}); put it below a --models folder of a "
          "worker, give a directory on the nodes, or start a worker with --model-cache, which "
          "downloads models that have an id such as org/name",
          model, seen.empty() ? "none" : fmt::format("{}", fmt::join(seen, ", "))));
  return absl::OkStatus();
}

void WarnLate(WallTime now, spec::Resolution& resolution) {
  constexpr char kKey[] = "scheduling.deadline";
  const std::string& text = resolution.spec.scheduling.deadline;
  const auto deadline = ParseUtc(text);
  if (!deadline || *deadline > now) return;
  const spec::ResolvedValue* value = FindValue(resolution, kKey);
  resolution.warnings.push_back({kKey, value == nullptr ? 0 : value->line,
                                 fmt::format("{} has passed: the job can only be late", text)});
}

void LeaveUnplanned(const Planner::LayoutChoice& choice, const spec::JobText& text,
                    spec::Resolution& resolution) {
  if (!choice.layouts.empty() || !spec::SharesFewRows(resolution)) return;
  if (choice.chosen.has_value()) return spec::TakeLayout(*choice.chosen, "", resolution);
  spec::Resolution whole = spec::Resolve(text.text, text.file_name, text.overrides, text.options);
  resolution.spec = spec::WithLayout(std::move(resolution.spec), whole.spec);
  resolution.problems = std::move(whole.problems);
}

void SetLayout(const Planner::LayoutChoice& choice, spec::Resolution& resolution) {
  if (choice.layouts.empty()) return;
  const auto with_speed = [](const v1::Layout& layout) {
    return layout.tokens_per_second() == 0
               ? layout.keys()
               : fmt::format("{} with {:.0f} tokens/s", layout.keys(), layout.tokens_per_second());
  };
  if (!choice.chosen.has_value()) {
    if (choice.faster) {
      const std::string_view key = KeyOfCount(resolution);
      const spec::ResolvedValue* count = FindValue(resolution, key);
      resolution.warnings.push_back(
          {std::string(key), count == nullptr ? 0 : count->line,
           fmt::format("{} would be faster than the layout that the job names: {} in place of {}",
                       choice.layouts[1].keys(), with_speed(choice.layouts[1]),
                       with_speed(choice.layouts[0]))});
    }
    return;
  }
  if (!choice.chosen->ok()) return;
  std::string remark = ": " + choice.reason + ": " + with_speed(choice.layouts[0]);
  if (choice.layouts.size() > 1) remark += "; next " + with_speed(choice.layouts[1]);
  spec::TakeLayout(*choice.chosen, remark, resolution);
}

void SetPrecision(spec::JobSpec chosen, spec::Resolution& resolution) {
  const auto& before = resolution.spec.hyperparameters;
  const auto& after = chosen.hyperparameters;
  const auto set = [&](std::string_view key, std::string text, bool precise) {
    const auto value =
        std::find_if(resolution.values.begin(), resolution.values.end(),
                     [&](const spec::ResolvedValue& each) { return each.key == key; });
    if (value == resolution.values.end()) return;
    value->text = text;
    value->origin = "derived: from auto";
    if (precise) return;
    value->origin = "derived: the most precise with which the job fits";
    resolution.warnings.push_back(
        {std::string(key), value->line,
         fmt::format("auto is {}: the job does not fit into its GPUs with more", text)});
  };
  if (after.optimizer != before.optimizer) {
    set("hyperparameters.optimizer", std::string(spec::EnumName(after.optimizer)),
        after.optimizer == spec::Optimizer::kAdamW);
  }
  if (after.master_weights != before.master_weights) {
    set("hyperparameters.master_weights", std::string(spec::EnumName(after.master_weights)), false);
  }
  resolution.spec = std::move(chosen);
}

void ResolveComputeType(const FleetCatalog::Fleet& fleet, spec::Resolution& resolution) {
  constexpr char kKey[] = "hyperparameters.parallelism.bf16";
  spec::JobSpec& spec = resolution.spec;
  if (FindValue(resolution, kKey) != nullptr || spec.compute.gpu_type.empty()) return;
  const bool on_cpu = spec.compute.gpu_type == kCpuType;
  const auto type = fleet.types.find(spec.compute.gpu_type);
  const bool known = type != fleet.types.end();
  const bool real = known && !on_cpu && type->second.real;
  const bool pretended = on_cpu || (known && type->second.pretended);
  spec::ResolvedValue value{.key = kKey, .text = "auto", .origin = "default"};
  if (real != pretended) {
    spec.parallelism.compute_type = real ? spec::ComputeType::kBf16 : spec::ComputeType::kFp32;
    value.text = real ? "true" : "false";
    value.origin =
        fmt::format("derived: {} computes on {}", spec.compute.gpu_type, real ? "GPUs" : "the CPU");
  }
  const auto after = std::find_if(
      resolution.values.rbegin(), resolution.values.rend(),
      [](const auto& each) { return each.key.starts_with("hyperparameters.parallelism."); });
  resolution.values.insert(after.base(), std::move(value));
}

}  // namespace sft::server
