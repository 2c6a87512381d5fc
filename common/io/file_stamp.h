#pragma once

#include <sys/stat.h>

#include <string>

namespace sft::io {

// A text to compare that changes when a file's content does: its size and modification time. It
// leaves out the inode, which some file systems renumber at each look.
std::string ContentStamp(const struct stat& info);

// The same, plus what nobody can set back: the inode and the time of the last change of any kind.
std::string FullStamp(const struct stat& info);

// ContentStamp of the file that the path leads to; empty if there is none.
std::string ContentStampOf(const std::string& path);
std::string FullStampOf(const std::string& path);

}  // namespace sft::io
