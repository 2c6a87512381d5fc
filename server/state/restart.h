#pragma once

#include <cstdint>
#include <string>

#include "common/spec/job_spec.h"
#include "server/state/verdict.h"

// Whether a gang that failed is placed again. Pure.

namespace sft::server {

// What a job's restarts have used up and how far it came; rows of `jobs`. Budgets only shrink.
struct RestartState {
  int restarts = 0;          // after faults of the machines
  int unknown_restarts = 0;  // after failures nobody can explain
  int idle = 0;              // in a row without a new step or checkpoint
  int quick = 0;             // in a row whose attempt ended soon after it began
  // Of the attempts that led to where the job is: of others, nothing can be reached any more.
  int64_t furthest_step = 0;
  int64_t saved_step = 0;  // of the newest committed checkpoint

  bool operator==(const RestartState&) const = default;
};

// What the job file allows.
struct RestartRules {
  int max_restarts = 10;
  int max_unknown_restarts = 3;
  bool replace_unreachable = true;
  int64_t unreachable_after_us = 900'000'000;
};

RestartRules RestartRulesOf(const spec::JobSpec& spec);

// How the server waits between restarts.
struct RestartPace {
  int64_t first_delay_us = 5'000'000;
  int64_t max_delay_us = 300'000'000;
  // An attempt that lived shorter than this doubles the next delay; a longer one resets it.
  int64_t quick_us = 600'000'000;
};

// Code of a verdict: the server has lost a data set of the job, and no node can bring it back.
inline constexpr char kDatasetLost[] = "dataset_lost";
// Code of a verdict: the stored settings of the job cannot be read any more.
inline constexpr char kSettingsLost[] = "settings_lost";

// Restarts in a row without progress, after which a job is not tried again.
inline constexpr int kMaxIdleRestarts = 3;

// An attempt that failed, or was set aside.
struct FailedAttempt {
  Verdict verdict;
  int64_t resume_step = 0;    // that it began from
  int64_t furthest_step = 0;  // that it reached
  int64_t saved_step = 0;     // newest checkpoint that it committed
  int64_t lived_us = 0;       // from its placement to its end
};

// How far the job has come with this attempt; with a new step or checkpoint `idle` is 0. One that
// began before the newest checkpoint, since that was out of reach, is measured by where it began.
RestartState WithProgress(RestartState state, const FailedAttempt& attempt);

// What becomes of the job.
struct RestartDecision {
  bool restart = false;
  int64_t delay_us = 0;
  RestartState state;
  // The attempt's, with retries_left and action; where no progress ends the job, that is said.
  Verdict verdict;
};

// A fault of the job itself is never tried again, nor a data set that is lost; one of the machines,
// or an unexplained one, is within its own budget, and not after kMaxIdleRestarts restarts in a row
// that got nowhere.
RestartDecision DecideRestart(const FailedAttempt& failed, const RestartState& before,
                              const RestartRules& rules, const RestartPace& pace);

// The verdict of a job whose stored settings cannot be read, which `problem` tells.
Verdict SettingsLost(const std::string& problem);
// What becomes of such a job after a failed attempt: it ends, since nothing says what it allows.
RestartDecision DecideWithoutSettings(const FailedAttempt& failed, const RestartState& before,
                                      const std::string& problem);

}  // namespace sft::server
