#pragma once

#include <cstdint>
#include <string>
#include <vector>

// What the scheduler goes by, as values of rows. Times are microseconds since the Unix epoch,
// durations microseconds; 0 for "none" and "not known".

namespace sft::server {

// Of a job, beside its JobRecord.
struct ScheduleRecord {
  std::vector<std::string> after;  // ids of jobs that have not succeeded yet
  bool held = false;
  std::string hold_reason;
  int64_t time_limit_us = 0;  // of all attempts together
  int64_t warn_before_us = 0;
  int64_t deadline_us = 0;
  bool exclusive = false;
  bool preemptible = true;
  int64_t planned_us = 0;  // whole run, by the plan's time model
  int64_t planned_steps = 0;
  int64_t used_us = 0;  // for which attempts that are over held their slots
  bool warned = false;  // that time_limit is near
  std::string sweep;
  int sweep_limit = 0;
  std::string group;  // job.group; empty: none
};

// A project's part of the fleet and what it may use; 0: any number.
struct ProjectLimits {
  std::string project;
  double share = 1;
  int max_gpus = 0;
  int max_running = 0;
  int max_pending = 0;
  int max_priority = 2;  // number of spec::Priority
  double usage_us = 0;   // GPU time of attempts that are over, decayed to usage_at_us
  int64_t usage_at_us = 0;
};

// What was promised to a waiting gang: it starts then, on these nodes, or earlier.
struct Reservation {
  int64_t start_us = 0;
  std::vector<std::string> nodes;  // in node rank order

  bool empty() const { return nodes.empty(); }
  bool operator==(const Reservation&) const = default;
};

// Where a waiting job stands: its place in line (0: in none), its expected and its promised start.
struct WaitPlace {
  int place = 0;
  int64_t start_us = 0, promised_us = 0;

  bool operator==(const WaitPlace&) const = default;
};

// What moved a waiting job.
struct WaitChange {
  std::string job;
  int64_t time_us = 0;
  WaitPlace before, after;
  std::string cause;  // for people
};

// What was expected of a job, and what happened.
struct EstimateRecord {
  std::string job_id;
  std::string project;
  std::string gpu_type;
  int gpus = 0;
  int64_t submitted_us = 0;
  int64_t start_us = 0, end_us = 0;    // as of its submit
  int64_t at50_us = 0, end50_us = 0;   // of its end, as of its 50th step
  int64_t begun_us = 0, ended_us = 0;  // ended_us: with success
};

}  // namespace sft::server
