#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sft {

// A random id: `prefix` + "-" + `length` characters of [a-z0-9] without look-alikes, from the
// kernel's random source; 10 characters give 2^49 possibilities.
std::string RandomId(std::string_view prefix, int length = 10);

// The components of a path that are ids with this prefix, in lower case, because a file system may
// ignore case.
std::vector<std::string> IdsInPath(std::string_view prefix, std::string_view path, int length = 10);

// A random UUID (version 4), for request ids and incarnations.
std::string RandomUuid();

}  // namespace sft
