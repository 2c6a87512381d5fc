#pragma once

#include <functional>
#include <optional>
#include <string>

#include "worker/channel/launch.h"

// RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT: how launchers tell a process which
// rank it is. The worker sets them for every rank it starts; a rank that is started by hand may be
// given them in place of --rank and of the launch file's rendezvous.

namespace sft::rank {

using EnvLookup = std::function<std::optional<std::string>(const std::string&)>;

// The global rank: `flag` (--rank), or RANK where that is -1.
int GlobalRank(int flag, const EnvLookup& env);

// Index of the rank's GPU among those it sees: LOCAL_RANK, or its place on the node.
int LocalRank(int rank, const channel::RankLaunch& launch, const EnvLookup& env);

// "host:port" where the ranks meet: the launch file's, or MASTER_ADDR and MASTER_PORT; empty for a
// world of one.
std::string MeetingAddress(const channel::RankLaunch& launch, const EnvLookup& env);

// All three throw engine::UserError "Process group not initialized: ...", naming what is missing or
// does not agree with the launch file.

}  // namespace sft::rank
