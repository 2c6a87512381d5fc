#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/plan/layout.h"
#include "common/plan/plan.h"
#include "common/spec/job_protocol.h"
#include "server/scheduling/planning.h"
#include "server/store/nodes.h"

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

// The job in a layout.
struct Divided {
  spec::Layout layout;
  spec::Resolution job;
};

// In all that go with it, and whose keys workers of the protocol know; what else the job asks of
// them it asks in any.
std::vector<Divided> InAllLayouts(const spec::JobText& text, const spec::Resolution& resolution,
                                  int protocol) {
  spec::JobSpec whole;
  whole.hyperparameters = resolution.spec.hyperparameters;
  whole = spec::WithLayout(resolution.spec, whole);
  protocol = std::max(protocol, spec::NeedOf(whole).protocol);
  std::vector<Divided> all;
  for (const spec::Layout& layout : spec::LayoutsFor(resolution.spec.compute)) {
    spec::Resolution job = spec::InLayout(text, resolution, layout);
    // Keys of shards may mean nothing here.
    if (!job.ok() || spec::LayoutOf(job.spec) != layout) continue;
    job.spec = spec::WithLayout(resolution.spec, job.spec);
    if (spec::NeedOf(job.spec).protocol <= protocol) all.push_back({layout, std::move(job)});
  }
  return all;
}

// In the first that goes with the model, too.
std::optional<spec::Resolution> InFirstLayout(const plan::ModelConfig& model,
                                              const spec::JobText& text,
                                              const spec::Resolution& resolution, int protocol) {
  for (Divided& each : InAllLayouts(text, resolution, protocol)) {
    if (plan::CheckJob(model, each.job.spec) || plan::CheckStages(model, each.job.spec)) continue;
    return std::move(each.job);
  }
  return std::nullopt;
}

}  // namespace

int Planner::KnownProtocol(const std::string& gpu_type) {
  int newest = 0;
  const absl::Status read = store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const std::vector<NodeRecord> nodes, store::AllNodes(db));
    for (const NodeRecord& node : nodes) {
      const bool has =
          std::ranges::find(node.slots, gpu_type, &SlotRecord::gpu_type) != node.slots.end();
      if (has && registry_.IsConnected(node.name)) newest = std::max(newest, node.protocol);
    }
    return absl::OkStatus();
  });
  return read.ok() && newest > 0 ? newest : kProtocol;
}

std::vector<Planner::KnownLayout> Planner::PlanLayouts(const plan::ModelShape& shape,
                                                       int64_t memory, const spec::JobText& text,
                                                       const spec::Resolution& resolution,
                                                       int protocol) {
  const bool named = spec::NamesLayout(resolution);
  const spec::Layout own = spec::LayoutOf(resolution.spec);
  std::vector<spec::Layout> layouts;
  std::vector<spec::JobSpec> jobs;
  for (Divided& each : InAllLayouts(text, resolution, protocol)) {
    layouts.push_back(each.layout);
    jobs.push_back(std::move(each.job.spec));
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
  const int protocol = KnownProtocol(spec.compute.gpu_type);
  const std::string key = fmt::format("{} {} {}", named, protocol, PlanKey(spec, memory, *config));
  std::optional<std::vector<KnownLayout>> known;
  {
    const MutexLock lock(mutex_);
    if (const auto found = layouts_.find(key); found != layouts_.end()) known = found->second;
  }
  const absl::StatusOr<plan::ModelConfig> model = plan::ParseModelConfig(*config);
  if (!model.ok()) return choice;
  if (!known) {
    known = PlanLayouts(*model, memory, text, resolution, protocol);
    const MutexLock lock(mutex_);
    if (layouts_.size() >= kMostKnownPlans) layouts_.clear();
    layouts_[key] = *known;
  }
  choice.fits_none = !named && known->empty();
  if (choice.fits_none) choice.chosen = InFirstLayout(*model, text, resolution, protocol);
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
  } else if (spec::KeepsLayout(resolution)) {
    choice.reason = "that of the job that it goes on with";
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
