#pragma once

#include <sys/stat.h>

#include <string>

namespace sft::io {

// What tells a file from how it was at another time, as text that is compared: its size and when
// its content was changed last. Says nothing of the inode, whose number some file systems make up
// at each look.
std::string ContentStamp(const struct stat& info);

// The same with what nobody can set back: inode and time of the last change of any kind.
std::string FullStamp(const struct stat& info);

// Of the file that the path leads to; empty: there is none.
std::string ContentStampOf(const std::string& path);
std::string FullStampOf(const std::string& path);

}  // namespace sft::io
