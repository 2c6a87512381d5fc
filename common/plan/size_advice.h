#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/plan/model_config.h"
#include "common/spec/job_spec.h"

namespace sft::plan {

// What to write for a number of GPUs of one node that share rows or matrices, where a job names one
// that does not fit its model: "2, 4 would do", "3 would do, on nodes with a multiple of so many
// GPUs", or `otherwise`. `fits`: whether the model can be divided over so many, at most its heads.
std::string SizeAdvice(const ModelShape& shape, const spec::JobSpec& job,
                       const std::function<bool(int64_t)>& fits, const std::string& otherwise);

}  // namespace sft::plan
