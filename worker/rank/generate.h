#pragma once

#include "worker/rank/arguments.h"

namespace sft::rank {

// `sft-rank generate`: answers each prompt through the model's chat template and prints the
// answers. Throws engine errors.
void RunGenerate(const Arguments& arguments);

}  // namespace sft::rank
