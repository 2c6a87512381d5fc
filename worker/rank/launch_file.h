#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/spec/job_spec.h"
#include "worker/channel/launch.h"
#include "worker/engine/data/dataset.h"

namespace sft::rank {

// A launch file with its job parsed.
struct Launch {
  channel::RankLaunch file;
  spec::JobSpec spec;
};

// The files with training rows, in the order of the job's.
std::vector<channel::RowFile> TrainingFiles(const Launch& launch);
// That of data.val, or the training files where data.val_split holds a part of them out; empty
// without validation.
std::vector<channel::RowFile> ValidationFiles(const Launch& launch);

// What the job says of a file with rows: PrepareOptions::ForTraining or ForValidation.
using OptionsOf = engine::PrepareOptions (*)(const spec::JobSpec&, std::filesystem::path,
                                             std::filesystem::path, size_t);
// How each of the files is prepared.
std::vector<engine::PrepareOptions> OptionsOfFiles(const Launch& launch,
                                                   const std::vector<channel::RowFile>& files,
                                                   OptionsOf options_of);

// InvalidArgument or NotFound naming the file and the member that is wrong.
absl::StatusOr<Launch> ReadLaunch(const std::string& path);

// <attempt dir>/<process>.events
std::string EventPath(const Launch& launch, const std::string& process);

}  // namespace sft::rank
