#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/spec/grader.h"
#include "worker/grading/verdict.h"

// Programs of users that grade answers, confined (sandbox.h).

namespace sft::grading {

// Finds the programs of the graders of type kCommand, each below one of `roots`, and replaces their
// paths by what links lead to. `most_memory_mb`: that a program may have; 0: what its job gives it.
// FAILED_PRECONDITION: the node runs none, or not these.
absl::Status FindPrograms(const std::vector<std::string>& roots, int64_t most_memory_mb,
                          std::vector<spec::Grader>& graders);

// What a program writes: a number, or {"score": number, "text": "why"}; as a score of 100.
Verdict ReadVerdict(const spec::Grader& grader, const std::string& output);

// Runs a program on an answer, to its end, in `folder`, which is made for it and removed.
Verdict RunProgram(const spec::Grader& grader, const Sample& sample,
                   const std::vector<std::string>& roots, const std::string& folder,
                   const std::atomic<bool>& stop);

}  // namespace sft::grading
