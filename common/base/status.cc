#include "common/base/status.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

namespace sft {
namespace {

absl::Status Make(absl::StatusCode code, std::string_view message) {
  return absl::Status(code, absl::string_view(message.data(), message.size()));
}

}  // namespace

absl::Status InvalidArgument(std::string_view m) {
  return Make(absl::StatusCode::kInvalidArgument, m);
}
absl::Status NotFound(std::string_view m) { return Make(absl::StatusCode::kNotFound, m); }
absl::Status AlreadyExists(std::string_view m) { return Make(absl::StatusCode::kAlreadyExists, m); }
absl::Status FailedPrecondition(std::string_view m) {
  return Make(absl::StatusCode::kFailedPrecondition, m);
}
absl::Status Unavailable(std::string_view m) { return Make(absl::StatusCode::kUnavailable, m); }
absl::Status DeadlineExceeded(std::string_view m) {
  return Make(absl::StatusCode::kDeadlineExceeded, m);
}
absl::Status PermissionDenied(std::string_view m) {
  return Make(absl::StatusCode::kPermissionDenied, m);
}
absl::Status ResourceExhausted(std::string_view m) {
  return Make(absl::StatusCode::kResourceExhausted, m);
}
absl::Status OutOfRange(std::string_view m) { return Make(absl::StatusCode::kOutOfRange, m); }
absl::Status Aborted(std::string_view m) { return Make(absl::StatusCode::kAborted, m); }
absl::Status DataLoss(std::string_view m) { return Make(absl::StatusCode::kDataLoss, m); }
absl::Status Internal(std::string_view m) { return Make(absl::StatusCode::kInternal, m); }

absl::Status ErrnoStatus(std::string_view what, int error_number) {
  const std::string message =
      fmt::format("{}: {}", what, std::system_category().message(error_number));
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return NotFound(message);
    case ELOOP:
    case ENAMETOOLONG:
    case EISDIR:
      return InvalidArgument(message);
    case EEXIST:
      return AlreadyExists(message);
    case EACCES:
    case EPERM:
      return PermissionDenied(message);
    case ENOSPC:
    case EDQUOT:
      return ResourceExhausted(message);
    default:
      return Unavailable(message);
  }
}

absl::Status Annotate(const absl::Status& status, std::string_view prefix) {
  if (status.ok()) return status;
  return Make(status.code(), fmt::format("{}: {}", prefix, Message(status)));
}

}  // namespace sft
