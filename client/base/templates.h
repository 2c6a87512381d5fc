#pragma once

#include <span>
#include <string_view>

namespace sft::client {

// A job file of configs/, compiled in.
struct Template {
  std::string_view file_name;
  std::string_view text;
};

// In the order of their file names.
std::span<const Template> Templates();

}  // namespace sft::client
