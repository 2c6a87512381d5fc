#pragma once

#include <string>

// Notes that a file of a data set was verified. FILE.checked beside the file says that its bytes
// had the hash that names it, and records the file's stamp: while the stamp is unchanged, the file
// is not read again, however large it is, even after a restart of the worker.

namespace sft::worker {

inline constexpr char kCheckedSuffix[] = ".checked";

// True when there is such a note, and the file has not changed since.
bool WasChecked(const std::string& path);
// `stamp`: the file's FullStampOf before it was read. If the note cannot be written, the file is
// only read once more.
void NoteChecked(const std::string& path, const std::string& stamp);
// Marks the file as used now by its time of change; a valid note stays valid.
void MarkUsed(const std::string& path);

}  // namespace sft::worker
