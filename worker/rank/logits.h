#pragma once

#include "worker/rank/arguments.h"

namespace sft::rank {

// `sft-rank logits`: writes what the model computes for given tokens, for comparison with another
// implementation. Throws engine errors.
void RunLogits(const Arguments& arguments);

}  // namespace sft::rank
