#pragma once

#include <string>

#include "common/base/status.h"
#include "common/io/file.h"

namespace sft::channel {

// The right to start an attempt's processes on this node: one shim per attempt, once, because
// ranks must never run twice under one epoch. Held while the file is open. ALREADY_EXISTS: another
// process holds it, or the attempt has a status file, so it was started before.
absl::StatusOr<io::UniqueFd> ClaimAttempt(const std::string& attempt_dir,
                                          const std::string& attempt_uid);

}  // namespace sft::channel
