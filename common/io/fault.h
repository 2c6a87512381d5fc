#pragma once

#include <functional>
#include <string_view>

#include "common/base/status.h"

namespace sft::io {

// Tests put a full disk in the way of a write: `fault` is asked before each write, creation, rename
// and folder of this process and gives the error that it shall end with, or OK. Null takes it away.
// Half of the bytes of a write that is to fail are written first, as a disk does that fills up. Set
// it while no other thread writes.
void SetWriteFault(std::function<absl::Status(std::string_view path)> fault);

}  // namespace sft::io
