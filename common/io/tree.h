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
// it to `owner`, if any. Missing is OK.
absl::Status CloseTree(const std::string& path, const std::optional<Owner>& owner = std::nullopt);
// For a data folder that was made when they were left open to others: closes the folder itself and
// what it holds of these names, each as CloseTree does. What is closed already is not looked into,
// and a folder that all users share by its sticky bit stays as it is.
absl::Status CloseDataDir(const std::string& path, const std::vector<std::string>& names);

// Makes the folder, should it be missing, and gives it exactly this owner and mode. What is there
// and no folder is an error, a link to one, too. Its parent has to be safe from others.
absl::Status MakeDirAs(const std::string& path, const Owner& owner, mode_t mode);

}  // namespace sft::io
