#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/spec/job_spec.h"
#include "worker/engine/weights/layout.h"

namespace sft::engine {

// What a job trains of its model and what it leaves as it is, in lines for people: one for each
// kind of layer that differs in name, shape or treatment. `layout` as PrepareLayout left it.
std::vector<std::string> DescribeTraining(const ModelLayout& layout, const spec::JobSpec& spec);

// One line about the tensors among `names` that are no part of the language model (a vision tower,
// say) and are not trained; empty where there are none.
std::string DescribeOtherParts(std::span<const std::string> names, const ModelLayout& layout);

}  // namespace sft::engine
