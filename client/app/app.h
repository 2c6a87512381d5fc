#pragma once

#include "client/base/connection.h"
#include "client/output/console.h"

namespace sft::client {

// sftctl's main: parses the command line, runs the command, returns the exit code. `connect` makes
// the command's connection (tests give an in-process one).
using Connect = std::function<std::unique_ptr<Connection>(const std::string& server)>;
int RunApp(int argc, const char* const* argv, Console console, const Connect& connect);

}  // namespace sft::client
