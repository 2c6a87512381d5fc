#pragma once

#include <optional>
#include <string>

namespace sft {

// The value of an environment variable; nothing when it is unset. The only place that reads the
// environment: behaviour comes from files and flags, and the documented variables of docs/cli.md.
std::optional<std::string> GetEnv(const std::string& name);

}  // namespace sft
