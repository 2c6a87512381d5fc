#include "worker/transfer/checked_file.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include "common/io/file.h"
#include "common/io/file_stamp.h"

namespace sft::worker {
namespace {

constexpr int64_t kMaxNoteBytes = 4096;

}  // namespace

bool WasChecked(const std::string& path) {
  const absl::StatusOr<std::string> note = io::ReadFile(path + kCheckedSuffix, kMaxNoteBytes);
  return note.ok() && !note->empty() && *note == io::FullStampOf(path);
}

void NoteChecked(const std::string& path, const std::string& stamp) {
  const absl::Status noted = io::WriteFileAtomic(path + kCheckedSuffix, stamp);
  if (!noted.ok()) spdlog::warn("{}: {}", path, Message(noted));
}

void MarkUsed(const std::string& path) {
  const bool checked = WasChecked(path);
  // If this fails, the file counts as older than it is: at worst it is downloaded again.
  (void)utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  if (checked) NoteChecked(path, io::FullStampOf(path));
}

}  // namespace sft::worker
