#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/gangs/gang_life.h"
#include "sft/v1/worker_service.pb.h"

// What a node reports of its attempts, taken into the database. Inside one transaction of the
// store.

namespace sft::server {

// When a report came.
struct ReportTime {
  int64_t now_us = 0;
  std::optional<double> clock_offset;  // of the worker's clock from this one's, seconds
};

// Takes in what a node says of all its attempts. Reports of another epoch, or of an attempt that is
// over, change nothing of the attempt. Then advances the gangs it concerns. What cannot be taken of
// one attempt (CheckStatus refuses it, or it fits nothing that is stored) is undone and `refused`,
// and the others are taken; progress that cannot be true is left out. An error is of the store.
absl::Status TakeObservation(Database& db, const std::string& node, const v1::Observed& observed,
                             const RestartPace& pace, const ReportTime& time, ChangedJobs& changed,
                             std::vector<absl::Status>& refused);

}  // namespace sft::server
