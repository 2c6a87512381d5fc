#pragma once

#include "server/app/options.h"

namespace sft::server {

// Runs `sft-server check`: checks everything that a server with these options needs, changes
// nothing, and prints a line per check. The exit code is 1 when something would not work.
int RunCheck(const Options& options);

}  // namespace sft::server
