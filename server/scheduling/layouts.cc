#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/plan/layout.h"
#include "common/plan/plan.h"
#include "server/scheduling/planning.h"

// The layout of a job over several GPUs.

namespace sft::server {
namespace {

int Percent(double faster) { return static_cast<int>(std::lround(100 * (faster - 1))); }

bool IsKnownType(const spec::JobSpec& spec) {
  return plan::FindGpu(spec.compute.gpu_type) != nullptr;
}

std::string WhyChosen(double chosen, double second) {
  if (second == 0) return "no other fits";
  if (chosen >= second) return "the fastest that fits";
  return fmt::format("none is faster by more than {:.0f} %, and this is the simplest",
                     100 * plan::kWorthALayout);
}

}  // namespace

std::vector<Planner::KnownLayout> Planner::PlanLayouts(const plan::ModelShape& shape,
                                                       int64_t memory, const spec::JobText& text,
                                                       const spec::Resolution& resolution) {
  const bool named = spec::NamesLayout(resolution);
  const spec::Layout own = spec::LayoutOf(resolution.spec);
  std::vector<spec::Layout> layouts;
  std::vector<spec::JobSpec> jobs;
  for (const spec::Layout& layout : spec::LayoutsFor(resolution.spec.compute)) {
    const spec::Resolution other = spec::InLayout(text, resolution, layout);
    // Keys of shards may mean nothing here.
    if (!other.ok() || spec::LayoutOf(other.spec) != layout) continue;
    layouts.push_back(layout);
    jobs.push_back(spec::WithLayout(resolution.spec, other.spec));
  }
  const plan::GpuRates& gpu = plan::NearestGpu(resolution.spec.compute.gpu_type);
  std::vector<KnownLayout> known;
  for (const plan::PlannedLayout& each : plan::ChooseLayout(shape, gpu, memory, jobs)) {
    known.push_back({layouts[each.job], each.tokens_per_second, each.memory_bytes});
  }
  if (!named) return known;
  std::erase_if(known, [&](const KnownLayout& each) { return each.layout == own; });
  plan::PlanInput input{.shape = shape, .job = resolution.spec, .gpu = gpu};
  input.memory_bytes = plan::AllocatorBytes(input.job, memory, /*opened=*/false);
  input.job = plan::WithPrecision(input);
  const absl::StatusOr<plan::Plan> planned = plan::MakePlan(input);
  if (!planned.ok()) return {};
  known.resize(std::min<size_t>(known.size(), 1));
  known.insert(known.begin(), {own, planned->tokens_per_second, planned->memory.reserved()});
  return known;
}

Planner::LayoutChoice Planner::ChooseLayout(const spec::JobText& text,
                                            const spec::Resolution& resolution) {
  const spec::JobSpec& spec = resolution.spec;
  LayoutChoice choice;
  const int64_t memory = GpuMemory(spec);
  // CPUs have no plans, and no memory here.
  if (!spec.trains() || spec.compute.gpu_count == 1 || memory == 0) return choice;
  const absl::StatusOr<std::string> config = FindConfig(spec);
  if (!config.ok()) return choice;
  const bool named = spec::NamesLayout(resolution);
  const std::string key = fmt::format("{} {}", named, PlanKey(spec, memory, *config));
  std::optional<std::vector<KnownLayout>> known;
  {
    const MutexLock lock(mutex_);
    if (const auto found = layouts_.find(key); found != layouts_.end()) known = found->second;
  }
  if (!known) {
    const absl::StatusOr<plan::ModelConfig> model = plan::ParseModelConfig(*config);
    if (!model.ok()) return choice;
    known = PlanLayouts(*model, memory, text, resolution);
    const MutexLock lock(mutex_);
    if (layouts_.size() >= kMostKnownPlans) layouts_.clear();
    layouts_[key] = *known;
  }
  choice.fits_none = !named && known->empty();
  if (known->empty()) return choice;
  for (const KnownLayout& each : *known) {
    v1::Layout& added = choice.layouts.emplace_back();
    added.set_keys(spec::ToText(each.layout));
    if (IsKnownType(spec)) added.set_tokens_per_second(each.tokens_per_second);
    added.set_memory_bytes(each.memory_bytes);
  }
  const double own = known->front().tokens_per_second;
  const double other = known->size() > 1 ? (*known)[1].tokens_per_second : 0;
  if (!named) {
    choice.reason = WhyChosen(own, other);
    choice.chosen = spec::InLayout(text, resolution, known->front().layout);
  } else if (other > own * (1 + plan::kClearlyFaster)) {
    choice.faster = true;
    choice.reason = fmt::format("named by the job; {} would be {} % faster",
                                choice.layouts[1].keys(), Percent(other / own));
  } else {
    choice.reason = "named by the job";
  }
  return choice;
}

}  // namespace sft::server
