#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

// A recording of a rank's steps, which the worker asks for: it makes the folder
// <attempt dir>/profile-<id>/rank-<r> and passes the command "profile" (launch.h) with that id. The
// rank writes into the folder
//
//   trace       Chrome's trace events as JSON, each with ",\n" before it: a packed part of a file
//               (data::PartPacker)
//   table.json  StepTable, last and atomically: the recording is complete
//
// A rank whose folder is not there is not asked, or is no longer: it records nothing, or stops.

namespace sft::channel {

inline constexpr int64_t kMostRecordedSteps = 20;

// Time that went to one kind of work.
struct TimeShare {
  std::string kind;  // "attention"
  double seconds = 0;
};

// Where the time of the steps went, or why there is no recording. What is not said here is as of
// RankProfile in proto/sft/v1/profile.proto.
struct StepTable {
  std::string error;  // if not empty, nothing below is set
  int rank = 0;
  std::string device;
  int64_t first_step = 0, steps = 0;
  double seconds = 0;
  std::vector<TimeShare> shares;
  double hidden_communication = 0;  // seconds
  double step_before = 0;           // seconds
  double stall = 0;                 // seconds
  int64_t events = 0, events_left_out = 0;
  // Of the trace: its text, and its file.
  uint32_t crc32 = 0;
  int64_t text_bytes = 0, trace_bytes = 0;
  std::vector<std::string> notes;
};

std::string ToJson(const StepTable& table);
absl::StatusOr<StepTable> ParseStepTable(std::string_view json);

// "<attempt dir>/profile-<id>" and "<that>/rank-<rank>"
std::string RecordingFolder(std::string_view attempt_dir, std::string_view id);
std::string RecordingFolder(std::string_view attempt_dir, std::string_view id, int rank);

}  // namespace sft::channel
