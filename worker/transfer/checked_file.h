#pragma once

#include <string>

// A note beside a file of a data set, FILE.checked, says that its bytes were found to have the hash
// that names it, and what the file looked like then: one that still looks so is not read again,
// however large it is, nor by the worker's next life.

namespace sft::worker {

inline constexpr char kCheckedSuffix[] = ".checked";

// There is such a note, and the file has not changed since.
bool WasChecked(const std::string& path);
// `stamp`: the file's FullStampOf before it was read. What cannot be noted is read again, no more.
void NoteChecked(const std::string& path, const std::string& stamp);
// The file is used now: its time of change says so, and its note, if it was true, stays true.
void MarkUsed(const std::string& path);

}  // namespace sft::worker
