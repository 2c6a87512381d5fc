#include "server/openai/models.h"

#include <fmt/format.h>

#include <vector>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "server/openai/errors.h"
#include "server/openai/fields.h"
#include "server/openai/tuned.h"
#include "server/state/names.h"

namespace sft::server::openai {
namespace {

constexpr std::string_view kBase = ":base";
constexpr size_t kMostNamed = 20;

std::string JobOf(const v1::ServedModel& served) {
  return served.name().substr(served.name().rfind('/') + 1);
}

std::string ProjectOf(const v1::ServedModel& served) {
  const absl::StatusOr<JobRef> ref = ParseJobName(served.name());
  return ref.ok() ? ref->project : "";
}

Json ModelJson(const v1::ServedModel& served, bool base) {
  return {{"id", JobOf(served) + std::string(base ? kBase : "")},
          {"object", "model"},
          {"created", served.create_time().seconds()},
          {"owned_by", ProjectOf(served)},
          {"root", served.model()}};
}

std::string WhatThereIs(const v1::ListServedModelsResponse& served) {
  std::string ids;
  for (int i = 0; i < served.models_size(); ++i) {
    if (i == kMostNamed) {
      ids += fmt::format(" and {} more", served.models_size() - i);
      break;
    }
    const v1::ServedModel& each = served.models(i);
    ids += fmt::format("{}{}", ids.empty() ? "" : ", ", JobOf(each));
    if (each.has_adapter()) ids += fmt::format(", {}{}", JobOf(each), kBase);
  }
  return ids.empty() ? "no job of kind \"serve\" runs in your projects" : "there are " + ids;
}

std::string Shown(const std::string& model) { return WithoutHidden(model.substr(0, 100)); }

// The job that answers with what another has trained: one that runs before one that waits.
absl::StatusOr<Model> ChooseServerOf(const v1::ListServedModelsResponse& served,
                                     const std::string& model, const std::string& trained,
                                     const std::string& job) {
  const v1::ServedModel* chosen = nullptr;
  for (const v1::ServedModel& each : served.models()) {
    const bool fits = each.adapter() == trained || each.model() == trained;
    if (!fits || (!job.empty() && JobOf(each) != job)) continue;
    if (chosen == nullptr || (each.running() && !chosen->running())) chosen = &each;
  }
  if (chosen != nullptr) return Model{model, JobOf(*chosen), false};
  return NoModel(
      fmt::format("no job answers with {}: submit one with kind = \"serve\" and adapter = "
                  "\"{}\"",
                  Shown(model), trained));
}

}  // namespace

std::vector<Json> ServedModels(const v1::ListServedModelsResponse& served) {
  std::vector<Json> list;
  for (const v1::ServedModel& each : served.models()) {
    if (!each.running()) continue;
    list.push_back(ModelJson(each, /*base=*/false));
    if (each.has_adapter()) list.push_back(ModelJson(each, true));
  }
  return list;
}

std::string ModelList(std::vector<Json> models) {
  Json list = {{"object", "list"}, {"data", Json::array()}};
  for (Json& model : models) list["data"].push_back(std::move(model));
  return DumpJson(list);
}

absl::StatusOr<std::string> ModelPage(const v1::ListServedModelsResponse& served,
                                      const std::string& model) {
  SFT_ASSIGN_OR_RETURN(const Model chosen, ChooseModel(served, model, ""));
  for (const v1::ServedModel& each : served.models()) {
    if (JobOf(each) == chosen.job) return DumpJson(ModelJson(each, chosen.base));
  }
  return NoModel(fmt::format("there is no model {}: {}", Shown(model), WhatThereIs(served)));
}

absl::StatusOr<Model> ChooseModel(const v1::ListServedModelsResponse& served,
                                  const std::string& model, const std::string& job) {
  if (model.empty() && job.empty()) {
    if (served.models_size() == 1) {
      const std::string only = JobOf(served.models(0));
      return Model{only, only, false};
    }
    return NoModel(fmt::format("name the model, or ask below /jobs/JOB: {}", WhatThereIs(served)));
  }
  if (const std::optional<std::string> trained = JobOfModelName(model); trained.has_value()) {
    return ChooseServerOf(served, model, *trained, job);
  }
  Model chosen{model.empty() ? job : model, model.empty() ? job : model, false};
  if (chosen.job.ends_with(kBase)) {
    chosen.job.resize(chosen.job.size() - kBase.size());
    chosen.base = true;
  }
  if (!job.empty() && chosen.job != job) {
    return NoModel(fmt::format("below /jobs/{} there are {} and {}{}, not {}", Shown(job),
                               Shown(job), Shown(job), kBase, Shown(model)));
  }
  for (const v1::ServedModel& each : served.models()) {
    if (JobOf(each) == chosen.job && (each.has_adapter() || !chosen.base)) return chosen;
  }
  return NoModel(fmt::format("there is no model {}: {}", Shown(chosen.id), WhatThereIs(served)));
}

}  // namespace sft::server::openai
