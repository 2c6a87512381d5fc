#pragma once

#include <string>

#include "common/obs/check_report.h"
#include "worker/base/setup.h"
#include "worker/daemon/options.h"

namespace sft::worker {

// Runs `sft-worker check`: checks everything that a worker with these options needs, starts
// nothing, and prints a line per check. The exit code is 1 when something would not work.
int RunCheck(const Options& options);

// The checks of the server: reachability, versions and clock; as the node that has joined, if it
// has. A server with TLS tells others nothing but its certificate. Joins nothing.
void CheckServer(const Options& options, const NodeSetup& setup, obs::CheckReport& report);

// Opens that NCCL library in this process and prints its version; returns the exit code. A library
// may crash or hang when it is opened: run this as a child process.
int NcclProbeMain(const std::string& path);

}  // namespace sft::worker
