#include "worker/rank/plan_report.h"

#include <fmt/format.h>

namespace sft::rank {
namespace {

constexpr double kGiga = 1e9;

std::string Row(const std::string& name, double predicted, double measured, const char* unit) {
  const auto cell = [unit](double value, int digits) {
    return value > 0 ? fmt::format("{:.{}f}{}", value, digits, unit) : std::string("-");
  };
  const int digits = *unit == '\0' ? 0 : 2;
  const std::string difference = predicted > 0 && measured > 0
                                     ? fmt::format("{:+.1f} %", 100 * (predicted / measured - 1))
                                     : "";
  std::string row = fmt::format("{:<22}{:>14}{:>14}{:>10}", name, cell(predicted, digits),
                                cell(measured, digits), difference);
  row.resize(row.find_last_not_of(' ') + 1);
  return row + "\n";
}

std::string MemoryRow(const std::string& name, int64_t predicted, int64_t measured) {
  return Row(name, static_cast<double>(predicted) / kGiga, static_cast<double>(measured) / kGiga,
             " GB");
}

}  // namespace

channel::PlanEvent MakePlanEvent(int rank, const plan::Plan& plan, const std::string& description,
                                 bool rates_known, const Measured& measured) {
  channel::PlanEvent event;
  event.rank = rank;
  event.rows = plan.execution.rows;
  event.micro_batches = plan.execution.micro_batches;
  event.description = description;
  for (const plan::MemoryItem& item : plan::Items(plan.memory)) {
    event.categories.push_back({item.category, item.bytes});
  }
  const int64_t on_host = plan.memory.host + plan.memory.host_activations;
  if (on_host > 0) event.categories.push_back({"in host memory", on_host});
  event.resident_bytes = {plan.memory.between_steps(), measured.resident_bytes};
  event.allocated_bytes = {plan.memory.allocated(), measured.allocated_bytes};
  event.reserved_bytes = {plan.memory.reserved(), measured.reserved_bytes};
  event.outside_bytes = {0, measured.outside_bytes};
  event.predicted_tokens_per_second = rates_known ? plan.tokens_per_second : 0;
  event.measured_tokens_per_second = measured.tokens_per_second;
  return event;
}

std::string PlanTable(const channel::PlanEvent& event) {
  std::string table =
      fmt::format("plan: {}\n{:<22}{:>14}{:>14}\n", event.description, "", "predicted", "measured");
  for (const channel::PlanCategory& category : event.categories) {
    table += MemoryRow(category.name, category.bytes, 0);
  }
  table +=
      MemoryRow("between steps", event.resident_bytes.predicted, event.resident_bytes.measured);
  table +=
      MemoryRow("peak, allocated", event.allocated_bytes.predicted, event.allocated_bytes.measured);
  table +=
      MemoryRow("peak, reserved", event.reserved_bytes.predicted, event.reserved_bytes.measured);
  table += MemoryRow("beside the allocator", event.outside_bytes.predicted,
                     event.outside_bytes.measured);
  return table +
         Row("tokens/s", event.predicted_tokens_per_second, event.measured_tokens_per_second, "");
}

}  // namespace sft::rank
