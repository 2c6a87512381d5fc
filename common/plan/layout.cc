#include "common/plan/layout.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace sft::plan {
namespace {

struct LayoutCandidate {
  size_t job = 0;
  PlanInput input;
  double most = 0;  // tokens per second
};

double TokensOfStep(const spec::JobSpec& job) {
  return static_cast<double>(RankRows(job) * job.data_ranks()) *
         static_cast<double>(RowTokensOf(job));
}

// Those that fit, the ones that could be fastest first.
std::vector<LayoutCandidate> Fitting(const PlanInput& common, int64_t gpu_bytes,
                                     const std::vector<spec::JobSpec>& jobs) {
  std::vector<LayoutCandidate> candidates;
  for (size_t i = 0; i < jobs.size(); ++i) {
    PlanInput input = common;
    input.job = jobs[i];
    input.memory_bytes = AllocatorBytes(input.job, gpu_bytes, /*opened=*/false);
    const absl::StatusOr<double> seconds = LeastSeconds(input);
    if (!seconds.ok()) continue;
    // A pipeline's plan says whether it fits.
    if (*seconds > 0 && !FitsAtLeast(input)) continue;
    const double most =
        *seconds > 0 ? TokensOfStep(input.job) / *seconds : std::numeric_limits<double>::infinity();
    candidates.push_back({i, std::move(input), most});
  }
  std::ranges::stable_sort(candidates, std::ranges::greater(), &LayoutCandidate::most);
  return candidates;
}

// The plans of those that may be chosen, or be second; the fastest first.
std::vector<PlannedLayout> PlanFastest(const std::vector<LayoutCandidate>& candidates) {
  std::vector<PlannedLayout> planned;
  for (const LayoutCandidate& candidate : candidates) {
    // A simpler layout may be a little slower, and another may be second to it.
    if (planned.size() > 1 && candidate.most * (1 + kWorthALayout) < planned[1].tokens_per_second) {
      break;
    }
    PlanInput input = candidate.input;
    input.keeps_on_host = true;
    const absl::StatusOr<Plan> plan = MakePlan(input);
    if (!plan.ok()) continue;
    planned.push_back({candidate.job, plan->tokens_per_second, plan->memory.reserved()});
    std::ranges::stable_sort(planned, std::ranges::greater(), &PlannedLayout::tokens_per_second);
  }
  return planned;
}

}  // namespace

std::vector<PlannedLayout> ChooseLayout(const ModelShape& shape, const GpuRates& gpu,
                                        int64_t gpu_bytes, const std::vector<spec::JobSpec>& jobs) {
  if (jobs.empty()) return {};
  const size_t precisions = PrecisionsOf(jobs.front()).size();
  for (const bool keeps_on_host : {false, true}) {
    for (size_t precision = 0; precision < precisions; ++precision) {
      std::vector<spec::JobSpec> precise;
      for (const spec::JobSpec& job : jobs) precise.push_back(PrecisionsOf(job)[precision]);
      const std::vector<PlannedLayout> planned = PlanFastest(Fitting(
          {.shape = shape, .gpu = gpu, .keeps_on_host = keeps_on_host}, gpu_bytes, precise));
      if (planned.empty()) continue;
      PlannedLayout chosen = planned.front();
      for (const PlannedLayout& each : planned) {
        const bool as_fast =
            each.tokens_per_second * (1 + kWorthALayout) >= planned.front().tokens_per_second;
        if (as_fast && each.job < chosen.job) chosen = each;
      }
      std::vector<PlannedLayout> result = {chosen};
      for (const PlannedLayout& each : planned) {
        if (each.job != chosen.job && result.size() < 2) result.push_back(each);
      }
      return result;
    }
  }
  return {};
}

}  // namespace sft::plan
