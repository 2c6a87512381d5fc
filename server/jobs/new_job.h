#pragma once

#include <string>

#include "common/spec/resolve.h"
#include "server/state/records.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {

// A new job as the request and its resolution, which has no problems, make it: with an id of its
// own, and not stored yet.
JobRecord MakeJob(const v1::SubmitJobRequest& request, const spec::Resolution& resolution,
                  const std::string& principal);

// Everything that a request says, so that a repeat can be told from another job.
std::string RequestHash(const v1::SubmitJobRequest& request);

// The project that a request means; left out: the default one.
std::string ProjectOf(const std::string& named);

}  // namespace sft::server
