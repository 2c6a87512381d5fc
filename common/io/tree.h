#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"

// Owners and modes of folders in which somebody else may be at work: links are not followed at any
// depth, and files that have a name elsewhere, too, are left as they are.

namespace sft::io {

// Whom a file is to belong to.
struct Owner {
  uid_t uid = 0;
  gid_t gid = 0;
};

// Takes from group and others what they may do with the folder and all that is below it, and gives
// it to `owner`, if any. Missing is OK, and what lies deeper than 64 folders stays as it is: the
// folders above it are closed.
absl::Status CloseTree(const std::string& path, const std::optional<Owner>& owner = std::nullopt);
// For a data folder that was made when they were left open to others: closes the folder itself and
// what it holds of these names, each as CloseTree does. What is closed already is not looked into,
// and a folder that all users share by its sticky bit stays as it is. Answers with the paths, of
// these, that stay open as they belong to somebody else or their file system has no modes.
absl::StatusOr<std::vector<std::string>> CloseDataDir(const std::string& path,
                                                      const std::vector<std::string>& names);
// What to tell of such paths.
std::string OpenToOthers(const std::vector<std::string>& paths);

// Makes the folder, should it be missing, and gives it exactly this owner and mode. What is there
// and no folder is an error. A link to one counts where only this user can have made it, as the
// folder that holds it is this user's and closed to the writes of others.
absl::Status MakeDirAs(const std::string& path, const Owner& owner, mode_t mode);

}  // namespace sft::io
