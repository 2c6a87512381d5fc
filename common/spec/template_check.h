#pragma once

#include <string>
#include <string_view>

namespace sft::spec {

// Finds a block of a Jinja template that is opened and never closed, or closed and never opened,
// and names its line; empty if there is none. A template that passes may still be wrong: the ranks
// compile it.
std::string TemplateProblem(std::string_view source);

}  // namespace sft::spec
