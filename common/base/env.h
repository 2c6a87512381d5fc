#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sft {

// The value of an environment variable; nothing when it is unset. The only place that reads the
// environment: behaviour comes from files and flags, and the documented variables of docs/cli.md.
std::optional<std::string> GetEnv(const std::string& name);

// The names, sorted, of all environment variables that are set and begin with `prefix`.
std::vector<std::string> EnvNamesWith(std::string_view prefix);

}  // namespace sft
