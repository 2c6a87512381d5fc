#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "server/database/sqlite.h"
#include "server/gangs/gang_life.h"
#include "server/state/records.h"
#include "sft/v1/worker_service.pb.h"

// Nodes that are lent for a time (sft.v1.Lease), as allocations of Slurm are: they leave the fleet
// by themselves.

namespace sft::server {

class WorkerRegistry;

// What a connected worker says of its node's lease. A plain value; all times are this server's.
struct NodeLease {
  int64_t end_us = 0;   // 0: not known
  int64_t lead_us = 0;  // so long before the end its jobs have to leave
  std::string allocation;
  std::string leaving;  // what the worker says about why it leaves; empty: nothing

  // When its jobs have to leave; 0: not known.
  int64_t jobs_until_us() const { return end_us == 0 ? 0 : end_us - lead_us; }
  // Why it leaves now; empty: it does not.
  std::string WhyLeaving(int64_t now_us) const;
};

// nullopt where the node has none. The worker's clock may differ from this one's (`now_us`).
std::optional<NodeLease> LeaseOf(const v1::Register& message, int64_t now_us);

// Inside a transaction of the store:

// Tells the jobs on nodes that leave to write a checkpoint and go on elsewhere.
absl::Status MoveOffLeaving(Database& db, const WorkerRegistry& registry,
                            const std::vector<NodeRecord>& nodes, int64_t now_us,
                            ChangedJobs& changed);

// Removes nodes with a lease that are gone, from `nodes` too: those that leave and have no attempt
// any more, and those that have fallen silent with none, once their time is over or nobody has
// heard them for kLostAfter. Returns the former, which WorkerRegistry::Dismiss tells after the
// commit. Operators' holds on them stay, which the event says.
inline constexpr std::chrono::minutes kLostAfter{10};
absl::StatusOr<std::vector<std::string>> RemoveLeft(Database& db, const WorkerRegistry& registry,
                                                    std::vector<NodeRecord>& nodes, int64_t now_us);

}  // namespace sft::server
