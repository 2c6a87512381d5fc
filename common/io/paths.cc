#include "common/io/paths.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

namespace sft::io {
namespace fs = std::filesystem;
namespace {

bool IsBelow(const fs::path& path, const fs::path& root) {
  const auto [root_end, unused] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
  // A root written with a trailing slash has an empty last component.
  return root_end == root.end() || (root_end->empty() && std::next(root_end) == root.end());
}

bool IsBelowAny(const fs::path& real, const std::vector<std::string>& roots) {
  return std::any_of(roots.begin(), roots.end(), [&](const std::string& root) {
    std::error_code error;
    const fs::path real_root = fs::canonical(root, error);
    return !error && IsBelow(real, real_root);
  });
}

// True when a path that cannot be opened names something in an allowed folder, so that its owner
// may be told why: its longest existing part resolves below a root, and what follows is not a link,
// which could lead anywhere. (A link to itself is a link too.)
bool FailsBelow(const fs::path& path, const std::vector<std::string>& roots) {
  std::error_code error;
  fs::path reached, next;
  for (const fs::path& part : path) {
    next = reached / part;
    const fs::path real = fs::canonical(next, error);
    if (error) break;
    reached = real;
  }
  return IsBelowAny(reached, roots) && !fs::is_symlink(fs::symlink_status(next, error));
}

// UNAVAILABLE where a root above the path does not answer, for example over a network: that says
// nothing about the path.
absl::Status CheckRootsOf(const fs::path& path, const std::vector<std::string>& roots) {
  for (const std::string& root : roots) {
    if (!IsBelow(path.lexically_normal(), fs::path(root).lexically_normal())) continue;
    std::error_code error;
    static_cast<void>(fs::canonical(root, error));
    if (error.value() == EIO || error.value() == ESTALE || error.value() == ENOTCONN) {
      return Unavailable(fmt::format("cannot reach {}: {}", root, error.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ResolveBelow(const std::string& path,
                                         const std::vector<std::string>& roots) {
  if (!fs::path(path).is_absolute()) {
    return InvalidArgument(fmt::format("\"{}\" is not an absolute path", path));
  }
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (!error && IsBelowAny(real, roots)) return real.string();
  if (error) SFT_RETURN_IF_ERROR(CheckRootsOf(path, roots));
  if (error && FailsBelow(path, roots)) {
    return ErrnoStatus(fmt::format("cannot open {}", path), error.value());
  }
  return PermissionDenied(
      fmt::format("{} leads to nothing below an allowed folder of this node ({})", path,
                  roots.empty() ? "none" : fmt::format("{}", fmt::join(roots, ", "))));
}

bool IsSafeRelative(std::string_view path) {
  if (path.empty() || path.size() > 512 || path.front() == '/') return false;
  if (path.find('\0') != path.npos || path.find('\\') != path.npos) return false;
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == path.npos) return true;
    path.remove_prefix(slash + 1);
  }
}

}  // namespace sft::io
