#include "client/output/resolution.h"

#include <fmt/format.h>

#include "client/output/cost.h"
#include "client/output/format.h"
#include "client/output/progress.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "client/output/wait_text.h"
#include "common/base/json.h"

namespace sft::client {

namespace {

Json LayoutsJson(const v1::JobPlan& plan) {
  Json layouts = Json::array();
  for (const v1::Layout& layout : plan.layouts()) {
    layouts.push_back({{"keys", layout.keys()},
                       {"tokens_per_second", layout.tokens_per_second()},
                       {"memory_bytes_per_rank", layout.memory_bytes()}});
  }
  return layouts;
}

}  // namespace

Json ResolutionJson(const v1::ResolveJobResponse& response) {
  Json json = {{"valid", response.problems().empty()}};
  json["problems"] = Json::array();
  for (const v1::Problem& problem : response.problems())
    json["problems"].push_back(ProblemJson(problem));
  json["warnings"] = Json::array();
  for (const v1::Problem& warning : response.warnings())
    json["warnings"].push_back(ProblemJson(warning));
  Json values = Json::object();
  for (const v1::ResolvedValue& value : response.resolved()) {
    values[value.key()] = {{"value", value.value()}, {"origin", value.origin()}};
  }
  json["values"] = values;
  // A job with problems has no resolved form.
  const Json resolved = ParseOrderedJson(response.resolved_json());
  json["resolved"] = resolved.is_discarded() ? Json(nullptr) : resolved;
  const v1::JobPlan& plan = response.plan();
  Json memory = Json::object();
  for (const v1::MemoryItem& item : plan.memory()) memory[item.category()] = item.bytes();
  json["plan"] = {{"variant", plan.variant()},
                  {"nodes", plan.nodes()},
                  {"ranks", plan.ranks()},
                  {"placement", plan.placement()},
                  {"batch", plan.batch()},
                  {"trainable_parameters", plan.trainable_parameters()},
                  {"total_parameters", plan.total_parameters()},
                  {"active_parameters", plan.active_parameters()},
                  {"memory_bytes_per_rank", memory},
                  {"memory_limit_bytes", plan.memory_limit_bytes()},
                  {"execution", plan.execution()},
                  {"tokens_per_second", plan.tokens_per_second()},
                  {"speed_from_peaks", plan.speed_from_peaks()},
                  {"layouts", LayoutsJson(plan)},
                  {"layout_reason", plan.layout_reason()},
                  {"outlook", plan.has_outlook() ? OutlookJson(plan.outlook()) : Json(nullptr)},
                  {"cost", CostJson(plan.has_cost(), plan.cost())},
                  {"wait", plan.has_wait() ? WaitJson(plan.wait()) : Json(nullptr)},
                  {"note", plan.note()}};
  return json;
}

namespace {

// "", ", 3.35G of them active for a token".
std::string ActiveText(const v1::JobPlan& plan) {
  const int64_t active = plan.active_parameters();
  if (active == 0 || active == plan.total_parameters()) return "";
  return fmt::format(", {} of them active for a token", Count(static_cast<double>(active)));
}

void PrintMemory(std::ostream& out, const v1::JobPlan& plan) {
  if (plan.memory().empty()) return;
  int64_t total = 0;
  std::string parts;
  for (const v1::MemoryItem& item : plan.memory()) {
    total += item.bytes();
    parts +=
        fmt::format("{}{} {}", parts.empty() ? "" : ", ", item.category(), Bytes(item.bytes()));
  }
  if (plan.execution().empty()) {
    out << fmt::format("memory       {} a rank, {} not counted ({})\n", Bytes(total),
                       plan.trainable_parameters() > 0 ? "activations" : "keys and values", parts);
    return;
  }
  out << fmt::format("execution    {}\n", plan.execution());
  out << fmt::format("memory       {} of {} a rank at the peak ({})\n", Bytes(total),
                     Bytes(plan.memory_limit_bytes()), parts);
}

// "fsdp = true: 94.8k tokens/s, 78.9 GB a rank"
std::string LayoutText(const v1::Layout& layout) {
  const std::string speed =
      layout.tokens_per_second() > 0 ? Count(layout.tokens_per_second()) + " tokens/s, " : "";
  return fmt::format("{}: {}{} a rank", layout.keys(), speed, Bytes(layout.memory_bytes()));
}

void PrintLayouts(std::ostream& out, const v1::JobPlan& plan) {
  if (plan.layouts().empty()) return;
  out << fmt::format("layout       {}; {}\n", LayoutText(plan.layouts(0)), plan.layout_reason());
  for (int i = 1; i < plan.layouts_size(); ++i) {
    out << fmt::format("{:<12} {}\n", i == 1 ? "next" : "", LayoutText(plan.layouts(i)));
  }
}

}  // namespace

void PrintPlan(std::ostream& out, const v1::ResolveJobResponse& response) {
  Table values({"KEY", "VALUE", "FROM"});
  for (const v1::ResolvedValue& value : response.resolved()) {
    values.Add({value.key(), value.value(), value.origin()});
  }
  const v1::JobPlan& plan = response.plan();
  out << values.Render() << "\n";
  out << fmt::format("allocation   {} on {} node{}: {} rank{}; {}\n", plan.variant(), plan.nodes(),
                     plan.nodes() == 1 ? "" : "s", plan.ranks(), plan.ranks() == 1 ? "" : "s",
                     plan.placement());
  if (const std::string outlook = OutlookText(plan.outlook()); !outlook.empty()) {
    out << fmt::format("expected     {}\n", outlook);
  }
  if (const std::string cost = CostText(plan); !cost.empty()) {
    out << fmt::format("cost         {}\n", cost);
  }
  PrintWait(plan.wait(), [&](const char* label, const std::string& text) {
    out << fmt::format("{:<12} {}\n", label, OneLine(text));
  });
  if (!plan.batch().empty()) out << fmt::format("batch        {}\n", plan.batch());
  if (plan.total_parameters() > 0 && plan.trainable_parameters() == 0) {
    out << fmt::format("parameters   {}{}\n", Count(plan.total_parameters()), ActiveText(plan));
  } else if (plan.total_parameters() > 0) {
    out << fmt::format("parameters   {} trainable of {} ({:.3f} %){}\n",
                       Count(plan.trainable_parameters()), Count(plan.total_parameters()),
                       100.0 * plan.trainable_parameters() / plan.total_parameters(),
                       ActiveText(plan));
  }
  PrintLayouts(out, plan);
  PrintMemory(out, plan);
  if (plan.tokens_per_second() > 0) {
    out << fmt::format("speed        {} tokens/s predicted{}\n", Count(plan.tokens_per_second()),
                       plan.speed_from_peaks()
                           ? " from the GPU's published peaks (this type was never measured)"
                           : "");
  }
  if (!plan.note().empty()) out << fmt::format("note         {}\n", plan.note());
}

}  // namespace sft::client
