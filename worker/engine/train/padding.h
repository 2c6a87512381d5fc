#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "worker/engine/data/step_plan.h"

namespace sft::engine {

// Lengths of documents to add to a micro-batch of these lengths, so that most micro-batches have
// one of a few shapes (kernels/batch_shape.h): tokens are brought to RoundTokens, by enough
// documents that none is longer than the shape's longest, their number to RoundDocuments where
// there are tokens for it. Nothing to add where the tokens are such a number already. What was
// padded is left as it is.
std::vector<int64_t> PaddingFor(c10::IntArrayRef lengths);

// The micro-batch with documents of padding behind its own: they have no targets, so that their
// gradients are zero and the sums over the others stay as they are, but for the order of summation.
// An empty one becomes padding alone.
MicroBatch WithPadding(MicroBatch batch);

}  // namespace sft::engine
