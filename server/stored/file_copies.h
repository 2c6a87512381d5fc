#pragma once

#include <functional>
#include <string>

#include "common/base/status.h"

// Durable copies of the server's files, as backups and restores need them.

namespace sft::server {

// Syncs the names in a folder and all below it and, with `files`, their contents too.
absl::Status SyncTree(const std::string& root, bool files);
// Lets only its owner into a folder.
absl::Status CloseToOthers(const std::string& folder);
// Makes a hard link where the file system allows it, else a copy. For files that never change.
absl::Status LinkOrCopy(const std::string& from, const std::string& to);
// Copies a file or a folder; `to` appears when it is whole. Does nothing when `to` exists or `from`
// does not.
absl::Status CopyTree(const std::string& from, const std::string& to);
// Copies a folder of logs or curves, whose files grow meanwhile; those that vanish are left out.
// The names in a folder are listed before anything is copied: a segment of a log that begins later
// would leave a hole before it. CANCELLED once `wanted` returns false.
absl::Status CopyGrowing(const std::string& from, const std::string& to,
                         const std::function<bool()>& wanted);
// Copies a folder of keys; only its owner may read the copies.
absl::Status CopyKeys(const std::string& from, const std::string& to);

}  // namespace sft::server
