#pragma once

#include <optional>
#include <string>

#include "common/base/status.h"
#include "sft/v1/job.pb.h"
#include "worker/channel/event.h"
#include "worker/channel/launch.h"

namespace sft::worker {

// What is known of a process besides its exit.
struct ProcessTraces {
  std::optional<channel::FatalEvent> fatal;
  std::string log_tail;
  // The attempt's disk is full: there was no room for a fatal event.
  bool disk_full = false;
};
// Reads them from the attempt's folder; a missing file leaves no trace.
ProcessTraces ReadTraces(const std::string& attempt_dir, const std::string& process_name);

// The process that failed first, nullptr if none did. One that blames the job's owner goes before
// those that only lost a neighbour: both may end between two looks of the shim.
const channel::ShimStatus::Process* FindBlamed(const channel::ShimStatus& status);

// Why an attempt's processes ended as they did, from exit codes, signals and the fatal event of the
// blamed process. `status` is terminal. Pure.
v1::Verdict MakeVerdict(const channel::ShimStatus& status, const ProcessTraces& blamed,
                        const std::string& node);

// Of an attempt that never got to its processes: `status` is what staging or starting said.
v1::Verdict MakeStartVerdict(const absl::Status& status, const std::string& node);

v1::Verdict SimpleVerdict(v1::Verdict::Domain domain, const std::string& code,
                          const std::string& message, const std::string& advice,
                          const std::string& node);

}  // namespace sft::worker
