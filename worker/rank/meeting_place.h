#pragma once

#include "common/spec/job_spec.h"
#include "worker/channel/launch.h"
#include "worker/engine/dist/rendezvous.h"

namespace sft::rank {

// Where the ranks of an attempt meet, and how long one of them waits for the others. Throws
// InternalError for a rendezvous that is no "host:port" (or "[::1]:port").
engine::RendezvousOptions MeetingPlace(const channel::RankLaunch& file, int rank,
                                       const spec::JobSpec& spec);

}  // namespace sft::rank
