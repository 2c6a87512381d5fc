#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/spec/job_spec.h"

namespace sft::spec {

// One of several files with training rows.
struct TrainPart {
  std::string path;
  double weight = 1;         // how often each row is seen in an epoch
  int64_t max_examples = 0;  // 0: all rows
};

// Parses an item of data.mixture: "PATH weight=0.5 max_examples=1000". InvalidArgument says what
// would be right.
absl::StatusOr<TrainPart> ParseTrainPart(std::string_view text);

// The files that a job trains on: those of data.mixture, or job.data alone.
absl::StatusOr<std::vector<TrainPart>> TrainParts(const JobSpec& spec);

// The key under which the file of the part is sent: "job.data" for the first.
std::string PartKey(size_t part);
// The part of a key; npos: it is none of a part.
size_t PartOfKey(std::string_view key);

}  // namespace sft::spec
