#pragma once

#include "tests/gpu/speed_table.h"

namespace sft::engine {

// Times the linears of all experts of a layer of gpt-oss-20b and Qwen3-30B-A3B with adapters of
// rank 16, at several mean rows an expert, as even shares and skewed: ExpertLinear's products, and
// the same by LibTorch's grouped product; then routing, and a whole layer.
void ExpertSpeeds(const Table& table);

}  // namespace sft::engine
