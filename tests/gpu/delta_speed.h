#pragma once

#include "tests/gpu/speed_table.h"

namespace sft::engine {

// Times the gated delta rule with the heads of Qwen3.5-9B (16 key heads and 32 value heads of 128)
// for documents of several lengths, and with more value heads; then the convolution before it and
// the norm behind it, against the bandwidth of a copy.
void DeltaSpeeds(const Table& table);

}  // namespace sft::engine
