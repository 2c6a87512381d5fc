#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <string_view>

// Errors outside the engine are absl::Status values. A message names what is wrong, where, and what
// to do; the code decides how a caller reacts (see docs/cli.md for the exit codes they become).

namespace sft {

absl::Status InvalidArgument(std::string_view message);
absl::Status NotFound(std::string_view message);
absl::Status AlreadyExists(std::string_view message);
absl::Status FailedPrecondition(std::string_view message);
absl::Status Unavailable(std::string_view message);
absl::Status DeadlineExceeded(std::string_view message);
absl::Status PermissionDenied(std::string_view message);
absl::Status ResourceExhausted(std::string_view message);
absl::Status OutOfRange(std::string_view message);
absl::Status Aborted(std::string_view message);
absl::Status DataLoss(std::string_view message);
absl::Status Internal(std::string_view message);

// The status of a failed system call: `what` + ": " + strerror(error_number). ENOENT and ENOTDIR
// become NotFound, ELOOP, ENAMETOOLONG and EISDIR (a path that no time mends) InvalidArgument,
// EACCES and EPERM PermissionDenied, ENOSPC and EDQUOT ResourceExhausted, EEXIST AlreadyExists,
// anything else Unavailable.
absl::Status ErrnoStatus(std::string_view what, int error_number);

// `status` with "prefix: " before its message; OK stays OK.
absl::Status Annotate(const absl::Status& status, std::string_view prefix);

// The message as a std::string_view (absl's own view type is not the standard one everywhere).
inline std::string_view Message(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

}  // namespace sft

#define SFT_CONCAT_INNER(a, b) a##b
#define SFT_CONCAT(a, b) SFT_CONCAT_INNER(a, b)

#define SFT_RETURN_IF_ERROR(expression)                                                \
  do {                                                                                 \
    if (::absl::Status sft_status = (expression); !sft_status.ok()) return sft_status; \
  } while (false)

// SFT_ASSIGN_OR_RETURN(auto value, Function());
#define SFT_ASSIGN_OR_RETURN(declaration, expression) \
  SFT_ASSIGN_OR_RETURN_INNER(SFT_CONCAT(sft_or_, __LINE__), declaration, expression)
#define SFT_ASSIGN_OR_RETURN_INNER(temporary, declaration, expression) \
  auto temporary = (expression);                                       \
  if (!temporary.ok()) return std::move(temporary).status();           \
  declaration = *std::move(temporary)
