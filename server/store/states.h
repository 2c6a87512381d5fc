#pragma once

#include "server/state/job_state.h"
#include "server/state/records.h"

// What SQL compares states and places with, as text: partial indexes are used only where a query
// has the number itself. `WHERE state ` SFT_IS_PENDING.

namespace sft::server::store {

// Of jobs.
#define SFT_IS_PENDING "= 1"
#define SFT_HAS_LIVE_ATTEMPT "IN (2, 3, 4)"
#define SFT_IS_SUCCEEDED "= 5"
#define SFT_IS_FAILED_OR_CANCELLED "IN (6, 7)"
static_assert(static_cast<int>(JobState::kPending) == 1);
static_assert(static_cast<int>(JobState::kPreparing) == 2);
static_assert(static_cast<int>(JobState::kRunning) == 3);
static_assert(static_cast<int>(JobState::kCancelling) == 4);
static_assert(static_cast<int>(JobState::kSucceeded) == 5);
static_assert(static_cast<int>(JobState::kFailed) == 6);
static_assert(static_cast<int>(JobState::kCancelled) == 7);

// Of jobs and attempts: the states that end one come last.
#define SFT_IS_LIVE "<= 4"
#define SFT_HAS_ENDED "> 4"
static_assert(static_cast<int>(AttemptState::kStopping) == 4);
static_assert(static_cast<int>(AttemptState::kSucceeded) == 5);
static_assert(static_cast<int>(AttemptState::kFailed) == 6);
static_assert(static_cast<int>(AttemptState::kCancelled) == 7);

// Of parts of checkpoints.
#define SFT_ON_SERVER "= 1"
#define SFT_IN_SHARED "= 3"
#define SFT_NOT_IN_SHARED "!= 3"
static_assert(static_cast<int>(CheckpointPlace::kServer) == 1);
static_assert(static_cast<int>(CheckpointPlace::kShared) == 3);

}  // namespace sft::server::store
