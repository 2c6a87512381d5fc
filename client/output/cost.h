#pragma once

#include <string>

#include "client/output/json.h"
#include "sft/v1/job.pb.h"
#include "sft/v1/job_service.pb.h"

// What jobs cost, as people and programs read it.

namespace sft::client {

// "12.40 EUR so far, 8.40 EUR an hour, 1.10 EUR of it lost work"; empty for a job without a cost.
std::string CostText(const v1::Job& job);
// "12.40 EUR for the whole run, 8.40 EUR an hour"; empty for a plan without a cost.
std::string CostText(const v1::JobPlan& plan);
// Null where there is none.
Json CostJson(bool has_cost, const v1::Cost& cost);

}  // namespace sft::client
