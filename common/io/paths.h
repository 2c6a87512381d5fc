#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace sft::io {

// The real path (links resolved, no "..") of an existing file or folder, if it lies in or below one
// of `roots` (themselves resolved first; one that does not exist allows nothing). PERMISSION_DENIED
// names the roots and is the same whether what lies outside of them is there or not, or cannot be
// looked at; NOT_FOUND when there is no such file below a root. Roots are absolute; "/" allows all.
absl::StatusOr<std::string> ResolveBelow(const std::string& path,
                                         const std::vector<std::string>& roots);

// Whether `path` can be appended to a folder without leaving it: relative, not empty, no empty, "."
// or ".." component, no NUL or backslash, at most 512 bytes.
bool IsSafeRelative(std::string_view path);

}  // namespace sft::io
