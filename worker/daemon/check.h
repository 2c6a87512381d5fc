#pragma once

#include <string>

#include "worker/daemon/options.h"

namespace sft::worker {

// `sft-worker check`: looks at all that a worker with these options needs, starts nothing, and
// prints a line for each; the exit code, 1 when something would not work.
int RunCheck(const Options& options);

// Opens that NCCL library in this process and prints its version; the exit code. A library may
// crash or hang when it is opened: run it as a child.
int NcclProbeMain(const std::string& path);

}  // namespace sft::worker
