#pragma once

#include <algorithm>
#include <vector>

#include "worker/engine/data/step_plan.h"

namespace sft::engine {

// Documents of these lengths, whose tokens predict the next one each.
inline MicroBatch Documents(const std::vector<int>& lengths, int seed, int vocabulary) {
  MicroBatch batch;
  batch.cu_seqlens = {0};
  for (const int length : lengths) {
    for (int i = 0; i < length; ++i) {
      const auto row = static_cast<int32_t>(batch.tokens.size());
      const bool last = i + 1 == length;
      batch.tokens.push_back((seed * 31 + row * 7) % vocabulary);
      batch.targets.push_back(last ? MicroBatch::kIgnore
                                   : (seed * 31 + (row + 1) * 7) % vocabulary);
      batch.positions.push_back(i);
      if (!last) batch.loss_rows.push_back(row);
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.tokens.size()));
    batch.max_seqlen = std::max(batch.max_seqlen, length);
  }
  batch.longest_row = batch.max_seqlen;
  return batch;
}

}  // namespace sft::engine
