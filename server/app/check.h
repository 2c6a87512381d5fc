#pragma once

#include "server/app/options.h"

namespace sft::server {

// `sft-server check`: looks at all that a server with these options needs, changes nothing, and
// prints a line for each; the exit code, 1 when something would not work.
int RunCheck(const Options& options);

}  // namespace sft::server
