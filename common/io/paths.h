#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace sft::io {

// The real path (links resolved, no "..") of an existing file or folder that lies in or below one
// of `roots`. Roots are absolute and are resolved first; one that does not exist allows nothing,
// and "/" allows everything. PERMISSION_DENIED names the roots, and is the same whether the path
// outside of them exists, does not exist or cannot be looked at; NOT_FOUND when there is no such
// file below a root.
absl::StatusOr<std::string> ResolveBelow(const std::string& path,
                                         const std::vector<std::string>& roots);

// True when `path` can be appended to a folder without leaving it: relative, not empty, no empty,
// "." or ".." component, no NUL or backslash, at most 512 bytes.
bool IsSafeRelative(std::string_view path);

}  // namespace sft::io
