#pragma once

#include <functional>
#include <string_view>

#include "common/base/status.h"

namespace sft::io {

// Injects write errors for tests (a full disk): `fault` is asked before each write, creation,
// rename and mkdir of this process and returns the error to fail with, or OK. Null removes it. Half
// of the bytes of a failing write are written first, as on a disk that fills up. Set it while no
// other thread writes.
void SetWriteFault(std::function<absl::Status(std::string_view path)> fault);

}  // namespace sft::io
