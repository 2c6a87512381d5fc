#pragma once

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace sft::engine {

// Names of spans by which a recording of steps is read (rank/step_table.h); a number may follow.
inline constexpr std::string_view kStepSpan = "step";
inline constexpr std::string_view kDataSpan = "data";
inline constexpr std::string_view kOptimizerSpan = "optimizer";
// Of collectives, with their numbers.
inline constexpr std::string_view kStartSpan = "start", kWaitSpan = "wait";

// What the calling thread does while this object lives, by a name, for whoever records the step.
// Where nobody does it costs some nanoseconds.
class PhaseSpan {
 public:
  explicit PhaseSpan(std::string_view name) : span_(at::RecordScope::USER_SCOPE) {
    if (span_.isActive()) span_.before(name);
  }
  // "NAME NUMBER" or "NAME NUMBER: DETAIL"
  PhaseSpan(std::string_view name, int64_t number, std::string_view detail = {})
      : span_(at::RecordScope::USER_SCOPE) {
    if (!span_.isActive()) return;
    name_ = fmt::format("{} {}{}{}", name, number, detail.empty() ? "" : ": ", detail);
    span_.before(name_);
  }
  PhaseSpan(const PhaseSpan&) = delete;
  PhaseSpan& operator=(const PhaseSpan&) = delete;

 private:
  std::string name_;
  at::RecordFunction span_;
};

}  // namespace sft::engine
