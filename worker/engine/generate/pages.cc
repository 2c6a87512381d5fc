#include "worker/engine/generate/pages.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "worker/engine/base/error.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {

using at::Tensor;

std::vector<int32_t> PageTable::Take(int64_t pages) {
  if (!HasRoom(pages)) throw InternalError("more pages were taken than there are");
  std::vector<int32_t> taken;
  while (static_cast<int64_t>(taken.size()) < pages) {
    if (free_.empty()) {
      taken.push_back(static_cast<int32_t>(touched_++));
    } else {
      taken.push_back(free_.back());
      free_.pop_back();
    }
  }
  used_ += pages;
  return taken;
}

void PageTable::GiveBack(const std::vector<int32_t>& pages) {
  free_.insert(free_.end(), pages.rbegin(), pages.rend());
  used_ -= static_cast<int64_t>(pages.size());
}

void LayerPages::Reserve(int64_t count, int64_t most, at::IntArrayRef heads,
                         const at::TensorOptions& like) {
  const int64_t present = k.defined() ? k.size(0) : 0;
  if (count <= present) return;
  const int64_t pages = std::min(most, std::max(count, 2 * present));
  for (Tensor* kept : {&k, &v}) {
    Tensor grown = at::empty({pages, PageTable::kPageTokens, heads[0], heads[1]}, like);
    if (present > 0) grown.narrow(0, 0, present).copy_(*kept);
    *kept = grown;
  }
}

void LayerPages::Write(const Tensor& slots, const Tensor& keys, const Tensor& values) {
  ops::WritePages(k, v, slots, keys, values);
}

}  // namespace sft::engine
