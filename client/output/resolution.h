#pragma once

#include <ostream>

#include "client/output/json.h"
#include "sft/v1/job_service.pb.h"

namespace sft::client {

// Prints a dry run: the problems of a job that has some, else its values and its plan.
Json ResolutionJson(const v1::ResolveJobResponse& response);
void PrintPlan(std::ostream& out, const v1::ResolveJobResponse& response);

}  // namespace sft::client
