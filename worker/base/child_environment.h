#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sft::worker {

// True when programs that the worker starts (shims, and with them ranks, and probes) get this
// variable of the worker's own environment. Only variables known to be useful are passed on: a
// worker may have been started with secrets in its environment, and ranks work on users' files.
bool IsPassedOn(std::string_view name);

// Passes these names on too (--rank-env). Call before the first program is started.
void PassOnToo(const std::vector<std::string>& names);

// "NAME=value" of all variables passed on, and of `added`, which replace those of the same name.
std::vector<std::string> ChildEnvironment(const std::vector<std::string>& added);

}  // namespace sft::worker
