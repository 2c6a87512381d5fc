#include "worker/engine/train/padding.h"

#include <algorithm>

#include "common/base/round.h"
#include "worker/engine/kernels/batch_shape.h"

namespace sft::engine {

std::vector<int64_t> PaddingFor(c10::IntArrayRef lengths) {
  const BatchShape shape = ShapeOf(lengths);
  const int64_t missing = RoundTokens(std::max<int64_t>(shape.tokens, 1)) - shape.tokens;
  if (missing == 0) return {};
  const int64_t longest = RoundLongest(std::max<int64_t>(shape.longest, 1));
  int64_t documents = RoundDocuments(shape.documents + 1);
  while ((documents - shape.documents) * longest < missing) {
    documents = RoundDocuments(documents + 1);
  }
  const int64_t added = std::min(documents - shape.documents, missing);
  std::vector<int64_t> padding(static_cast<size_t>(added), missing / added);
  for (int64_t i = 0; i < missing % added; ++i) ++padding[i];
  return padding;
}

MicroBatch WithPadding(MicroBatch batch) {
  if (batch.empty()) batch.cu_seqlens = {0};
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < batch.documents(); ++i) {
    lengths.push_back(batch.cu_seqlens[i + 1] - batch.cu_seqlens[i]);
  }
  for (const int64_t length : PaddingFor(lengths)) {
    for (int64_t position = 0; position < length; ++position) {
      batch.tokens.push_back(0);
      batch.targets.push_back(MicroBatch::kIgnore);
      batch.positions.push_back(static_cast<int32_t>(position));
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.tokens.size()));
    batch.max_seqlen = std::max(batch.max_seqlen, static_cast<int32_t>(length));
  }
  return batch;
}

}  // namespace sft::engine
