#pragma once

#include <functional>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/spec/job_spec.h"
#include "worker/attempt/attempt_record.h"
#include "worker/attempt/shim_client.h"
#include "worker/attempt/staging.h"
#include "worker/base/rank_user.h"
#include "worker/base/setup.h"
#include "worker/channel/event.h"
#include "worker/gpus/inventory.h"
#include "worker/transfer/server_api.h"

namespace sft::worker {

// What an attempt works with; all borrowed.
struct AttemptServices {
  const NodeSetup& setup;
  Stager& stager;
  Inventory& inventory;
  ServerApi& server;
  ShimHost& shims;
  Clock& clock;
  // LD_LIBRARY_PATH of ranks, or why none can start; may wait for the search at the worker's start.
  std::function<absl::StatusOr<std::string>()> torch_lib_dir;
  // Called, without a lock held, when the attempt's status has changed in a way the server should
  // hear of at once.
  std::function<void()> on_change;
};

// What stays the same for all of an attempt's life in this worker. Read by its threads.
struct AttemptContext {
  AttemptContext(const AttemptRecord& record, const AttemptServices& with);

  const AttemptServices services;
  const std::string uid;
  const std::string job_id;
  const int64_t epoch;
  const std::string dir;
  // The job, or why this worker cannot read it.
  const absl::StatusOr<spec::JobSpec> job;
  const Nanos fencing;  // how long ranks go on without the server; zero: for ever
  // With whose rights the worker works on what its ranks write.
  const std::optional<RankUser> rank_user;

  const std::string& node() const { return services.setup.node; }
  // Tells the job's owner: in node.events, and so in the job's history.
  void Warn(const std::string& message) const;
  // The same of what is no fault. `kind`: its type in the history.
  void Tell(const std::string& kind, const std::string& message) const;

 private:
  void WriteNote(const channel::WarningEvent& note) const;
};

}  // namespace sft::worker
