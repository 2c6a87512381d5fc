#pragma once

#include <map>
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

// Code of a rank whose only fault is that a collective failed: some other rank is to blame.
inline constexpr char kCascadeCode[] = "collective_failed";

// Traces of all processes, by name.
using Traces = std::map<std::string, ProcessTraces>;
// Of every process that failed.
Traces ReadAllTraces(const std::string& attempt_dir, const channel::ShimStatus& status);

// The process that failed first, nullptr if none did. Several may end between two looks of the
// shim, so one that blames the job's owner goes first, and those that only lost a neighbour or were
// told to end go last.
const channel::ShimStatus::Process* FindBlamed(const channel::ShimStatus& status,
                                               const Traces& traces);

// Why an attempt's processes ended as they did, from exit codes, signals and the fatal event of the
// blamed process. `status` is terminal. Pure.
v1::Verdict MakeVerdict(const channel::ShimStatus& status, const Traces& traces,
                        const std::string& node);

// Of an attempt that never got to its processes: `status` is what staging said (Stager::Stage).
v1::Verdict MakeStagingVerdict(const absl::Status& status, const std::string& node);
// The same where the node itself failed: its disk, its shim.
v1::Verdict MakeStartVerdict(const absl::Status& status, const std::string& node);

v1::Verdict SimpleVerdict(v1::Verdict::Domain domain, const std::string& code,
                          const std::string& message, const std::string& advice,
                          const std::string& node);

}  // namespace sft::worker
