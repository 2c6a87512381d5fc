#pragma once

#include <string>
#include <vector>

#include "common/spec/resolve.h"
#include "server/state/records.h"
#include "server/store/store.h"

namespace sft::server {

// Finds the adapter that a job names (job.adapter) and adds its files to the job's: those that
// another job of the project delivered, or a folder on the nodes. A job that has delivered none, or
// one for another base model, is a problem of the resolution; a checkpoint
// (PinCheckpoint) has no files here. An export that names no rows gets
// those of the job that trained the adapter.
absl::Status CheckAdapter(Store& store, const std::string& project, spec::Resolution& resolution,
                          std::vector<JobFileRecord>& files);

// Whether a resumed job still reads the adapter that it started from. A checkpoint has the weights
// as trained; the reference of a loss over preferences is made of the adapter anew.
bool ReadsAdapterOnResume(const spec::JobSpec& spec);

// Why the rows of the file at `path` are no prompts for a job that takes the first `most` of them
// (0: all); empty if they are, or if the file is so large that only the node looks at all of it.
std::string PromptsProblem(const std::string& path, const std::string& name, int64_t most);

}  // namespace sft::server
