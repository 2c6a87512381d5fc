#pragma once

#include <string>

namespace sft::rank {

// Version and build of this program: "0.1.0 (build 664b20f74e9a881c)". The second is the beginning
// of the id that the linker derives from the whole program (NT_GNU_BUILD_ID); a program without one
// has a version alone.
std::string BuildText();

}  // namespace sft::rank
