#pragma once

#include <absl/status/statusor.h>

#include <nlohmann/json.hpp>

#include "common/spec/job_spec.h"

namespace sft::spec {

// A spec as stored by the server and carried to the ranks: nested objects named as the job file's
// tables, hyperparameters.parallelism.sharding and .compute_type in place of the switches that they
// follow from. Lossless: FromJson(ToJson(spec)) equals spec.
nlohmann::json ToJson(const JobSpec& spec);

// InvalidArgument names the key. A missing key keeps its default, so that a newer reader takes an
// older writer's job; an unknown one is refused, so that an older reader never ignores a setting.
absl::StatusOr<JobSpec> FromJson(const nlohmann::json& json);

}  // namespace sft::spec
