#pragma once

#include <string>

#include "common/base/status.h"
#include "worker/channel/step_table.h"
#include "worker/rank/recording.h"

namespace sft::rank {

// Writes an arranged recording of this rank as Chrome's trace events into a new file, a part of a
// gzip file (data::PartPacker), and notes in the table how many and how large. Each rank is a
// process of the trace, its threads and the GPU's streams are threads. Events for which there is no
// room in `most_bytes` are left out, the latest ones, and the table says so.
absl::Status WriteTrace(const Recording& recording, const std::string& path, int64_t most_bytes,
                        channel::StepTable& table);

// The same as a whole gzip file.
absl::Status WriteTraceFile(const Recording& recording, const std::string& path,
                            channel::StepTable& table);

}  // namespace sft::rank
