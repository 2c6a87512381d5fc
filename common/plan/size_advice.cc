#include "common/plan/size_advice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace sft::plan {

std::string SizeAdvice(const ModelShape& shape, const spec::JobSpec& job,
                       const std::function<bool(int64_t)>& fits, const std::string& otherwise) {
  constexpr int64_t kMostRanks = 64;
  std::vector<int64_t> possible, of_node;
  for (int64_t count = 2; count <= std::min(shape.heads, kMostRanks); ++count) {
    if (!fits(count)) continue;
    possible.push_back(count);
    if (job.compute.gpus_per_node % count == 0) of_node.push_back(count);
  }
  if (!of_node.empty()) return fmt::format("{} would do", fmt::join(of_node, ", "));
  if (possible.empty()) return otherwise;
  return fmt::format("{} would do, on nodes with a multiple of so many GPUs",
                     fmt::join(possible, ", "));
}

}  // namespace sft::plan
