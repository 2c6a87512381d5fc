#pragma once

#include <string>
#include <vector>

#include "common/spec/resolve.h"
#include "server/state/records.h"
#include "sft/v1/job_service.pb.h"

// The values of a job that goes on with an ended one: those of its job file, then what had changed
// them, then what the resume changes. Pure.

namespace sft::server {

// What a submit of the same job with these changes would say, as SubmitOfResume does: it stands
// beside the first one and has nothing of its checkpoints.
v1::SubmitJobRequest SubmitAgain(const JobRecord& job, const std::vector<JobFileRecord>& files,
                                 const google::protobuf::RepeatedPtrField<v1::Override>& changes);

// What a submit of the new job would say; `files` are the ended job's. A former change of which
// GPUs gives way to a new one as a job file's value would. Values that follow from the GPUs but
// that the checkpoints have, as the global batch, stay unless the resume names them.
v1::SubmitJobRequest SubmitOfResume(const JobRecord& ended, const std::vector<JobFileRecord>& files,
                                    const v1::ResumeJobRequest& request);

// Whether the ended job came out with the value of this change: it was taken once, and rules that
// are younger do not refuse it (spec::ResolveOptions).
bool WasTaken(const JobRecord& ended, const v1::Override& override);

// Adds a problem for each value that no job may change that goes on from a checkpoint of `ended`:
// the ranks would refuse it (docs/checkpoint_format.md), or its rows were never uploaded.
void CheckFixedValues(const JobRecord& ended, spec::Resolution& resolution);

}  // namespace sft::server
