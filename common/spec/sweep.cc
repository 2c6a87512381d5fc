#include "common/spec/sweep.h"

#include <cstddef>

namespace sft::spec {

std::vector<int> SweepValues(const std::vector<int>& counts, int64_t index) {
  std::vector<int> values(counts.size());
  for (size_t i = counts.size(); i-- > 0;) {
    values[i] = static_cast<int>(index % counts[i]);
    index /= counts[i];
  }
  return values;
}

}  // namespace sft::spec
