#pragma once

#include <string>

#include "common/obs/check_report.h"
#include "worker/base/setup.h"
#include "worker/daemon/options.h"

namespace sft::worker {

// `sft-worker check`: looks at all that a worker with these options needs, starts nothing, and
// prints a line for each; the exit code, 1 when something would not work.
int RunCheck(const Options& options);

// Its part about the server: reach, versions and clock; as the node that has joined, if it has. A
// server with TLS says nothing to others but its certificate. Joins nothing.
void CheckServer(const Options& options, const NodeSetup& setup, obs::CheckReport& report);

// Opens that NCCL library in this process and prints its version; the exit code. A library may
// crash or hang when it is opened: run it as a child.
int NcclProbeMain(const std::string& path);

}  // namespace sft::worker
