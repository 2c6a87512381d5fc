#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sft {

// `prefix` + "-" + `length` random characters of [a-z0-9] without look-alikes, from the kernel's
// random source; 10 characters are 2^49 possibilities.
std::string RandomId(std::string_view prefix, int length = 10);

// The parts of a path that are such ids, in small letters; a file system may not tell capitals from
// them.
std::vector<std::string> IdsInPath(std::string_view prefix, std::string_view path, int length = 10);

// A random UUID (version 4) for request ids and incarnations.
std::string RandomUuid();

}  // namespace sft
