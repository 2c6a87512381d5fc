#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/spec/grader.h"

namespace sft::grading {

// What a grader made of an answer.
struct Verdict {
  absl::StatusOr<double> score = 0.0;  // of 100; or why there is none
  std::string text;                    // what it said beside its score
};

// An answer that is graded.
struct Sample {
  int64_t line = 0;  // of the row
  std::string prompt, reference, answer, finish_reason;
};

// The bytes of what a grader says that are kept.
inline constexpr size_t kMostVerdictText = 2000;

// The score that a grader gave, as one of 100; an error where it is none of its own.
absl::StatusOr<double> ScoreOf(const spec::Grader& grader, double given);

}  // namespace sft::grading
