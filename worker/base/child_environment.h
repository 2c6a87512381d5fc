#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sft::worker {

// Whether programs that the worker starts (shims, and with them ranks, and probes) get this
// variable of the worker's own environment. Only what is known to be of use does: a worker may have
// been started with secrets in its environment, and ranks work on users' files.
bool IsPassedOn(std::string_view name);

// Passes these names on, too (--rank-env). Call before the first program is started.
void PassOnToo(const std::vector<std::string>& names);

// "NAME=value" of all that is passed on, and of `added`, each of which replaces one of its name.
std::vector<std::string> ChildEnvironment(const std::vector<std::string>& added);

}  // namespace sft::worker
