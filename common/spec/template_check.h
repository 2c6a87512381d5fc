#pragma once

#include <string>
#include <string_view>

namespace sft::spec {

// What is open in a Jinja template and never closed, or closed and never opened, with its line;
// empty: nothing. A template that passes may still be wrong: the ranks compile it.
std::string TemplateProblem(std::string_view source);

}  // namespace sft::spec
