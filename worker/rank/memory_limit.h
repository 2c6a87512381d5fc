#pragma once

#include <cstdint>
#include <string>

#include "worker/channel/launch.h"

namespace sft::rank {

// The memory of its own that `sft-rank prepare` may take (files that are mapped to be read do not
// count): chat templates, tokenizers and rows are users' files, and the node is not theirs alone.
struct MemoryLimit {
  int64_t bytes = 0;
  // Most bytes that data of this size take where nothing is wrong with them; 0: not known.
  int64_t honest_bytes = 0;
  // The node has less left than prepare may take: what is missing is the node's.
  bool of_node = false;
};

// 4 GiB and 256 times the size of the data, at most half of the node's memory or what honest data
// of the size need, whichever is more; or the launch file's own figure. No more than 9/10 of what
// the node has left, and no less than 1 GiB of that.
MemoryLimit ChooseMemoryLimit(int64_t launch_bytes, int64_t data_bytes, int64_t total,
                              int64_t available);
MemoryLimit MemoryLimitOf(const channel::RankLaunch& launch);

// Holds this process to it (the stacks of its threads come on top: they are reserved, not taken),
// and makes it the first that the kernel ends when memory is short. Throws InfrastructureError.
void ApplyMemoryLimit(const MemoryLimit& limit);

// Throws why a process under `limit` was refused memory: a UserError, or an InfrastructureError
// where the node itself has none. `where` goes before it, "t.jsonl, line 3"; may be empty. Lifts
// the limit: whoever tells it needs memory.
[[noreturn]] void ThrowRefusedMemory(const MemoryLimit& limit, const std::string& where);

}  // namespace sft::rank
