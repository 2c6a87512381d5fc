#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"

// Owners and modes of folders in which another user may be at work: links are not followed at any
// depth, and files with another hard link are left as they are.

namespace sft::io {

// The user and group that a file is to belong to.
struct Owner {
  uid_t uid = 0;
  gid_t gid = 0;
};

// Removes the permissions of group and others from the folder and all below it, and changes their
// owner to `owner`, if given. A missing folder is OK. What lies deeper than 64 folders stays as it
// is: the folders above it are closed.
absl::Status CloseTree(const std::string& path, const std::optional<Owner>& owner = std::nullopt);
// Closes a data folder that an earlier version left open to others: the folder itself and those of
// `names` in it, each as CloseTree does. Folders that are already closed are not entered, and a
// folder that all users share by its sticky bit stays as it is. Returns those of these paths that
// stay open because they belong to another user or their file system has no modes.
absl::StatusOr<std::vector<std::string>> CloseDataDir(const std::string& path,
                                                      const std::vector<std::string>& names);
// The message for the user about such paths.
std::string OpenToOthers(const std::vector<std::string>& paths);

// Makes the folder if it is missing and sets exactly this owner and mode. An error if something
// else is there. A link to a folder is accepted where only this user can have made it: the folder
// that holds it belongs to this user and others cannot write to it.
absl::Status MakeDirAs(const std::string& path, const Owner& owner, mode_t mode);

}  // namespace sft::io
