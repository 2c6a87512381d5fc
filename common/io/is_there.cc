#include "common/io/is_there.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace sft::io {

absl::StatusOr<bool> IsThere(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::none) {
    return InvalidArgument(fmt::format("cannot read {}: {}", path, error.message()));
  }
  return type != std::filesystem::file_type::not_found;
}

}  // namespace sft::io
