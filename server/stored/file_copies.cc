#include "server/stored/file_copies.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <vector>

#include "common/io/file.h"

namespace sft::server {
namespace {

namespace fs = std::filesystem;

absl::Status SyncFile(const std::string& path) {
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(path));
  if (::fsync(fd.get()) != 0) return ErrnoStatus("cannot fsync " + path, errno);
  return absl::OkStatus();
}

}  // namespace

absl::Status SyncTree(const std::string& root, bool files) {
  if (!io::IsDirectory(root)) return absl::OkStatus();
  std::error_code error;
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end;
       it.increment(error)) {
    const std::string path = it->path().string();
    if (it->is_directory(error)) {
      SFT_RETURN_IF_ERROR(io::SyncDir(path));
    } else if (files && it->is_regular_file(error)) {
      SFT_RETURN_IF_ERROR(SyncFile(path));
    }
  }
  if (error) return ErrnoStatus("cannot list " + root, error.value());
  return io::SyncDir(root);
}

absl::Status CloseToOthers(const std::string& folder) {
  if (::chmod(folder.c_str(), 0700) != 0) return ErrnoStatus("cannot close " + folder, errno);
  return absl::OkStatus();
}

absl::Status LinkOrCopy(const std::string& from, const std::string& to) {
  if (io::Exists(to)) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(io::MakeDirs(fs::path(to).parent_path().string()));
  std::error_code error;
  fs::create_hard_link(from, to, error);
  if (!error) return absl::OkStatus();
  const std::string partial = to + ".partial";
  fs::copy_file(from, partial, fs::copy_options::overwrite_existing, error);
  if (error) return ErrnoStatus(fmt::format("cannot copy {} to {}", from, to), error.value());
  // Otherwise a power failure could leave an empty file under the name of its hash.
  SFT_RETURN_IF_ERROR(SyncFile(partial));
  return io::RenameDurably(partial, to);
}

absl::Status CopyTree(const std::string& from, const std::string& to) {
  if (!io::Exists(from) || io::Exists(to)) return absl::OkStatus();
  const std::string partial = to + ".partial";
  SFT_RETURN_IF_ERROR(io::RemoveAll(partial));
  SFT_RETURN_IF_ERROR(io::MakeDirs(fs::path(to).parent_path().string()));
  std::error_code error;
  fs::copy(from, partial, fs::copy_options::recursive, error);
  if (error) return ErrnoStatus(fmt::format("cannot copy {} to {}", from, to), error.value());
  SFT_RETURN_IF_ERROR(SyncTree(partial, /*files=*/true));
  return io::RenameDurably(partial, to);
}

absl::Status CopyGrowing(const std::string& from, const std::string& to,
                         const std::function<bool()>& wanted) {
  const absl::StatusOr<std::vector<std::string>> names = io::ListDir(from);
  if (!names.ok()) return io::Exists(from) ? names.status() : absl::OkStatus();
  SFT_RETURN_IF_ERROR(io::MakeDirs(to));
  for (const std::string& name : *names) {
    if (!wanted()) return absl::CancelledError("nobody wants it");
    const std::string path = from + "/" + name, copy = to + "/" + name;
    if (io::IsDirectory(path)) {
      SFT_RETURN_IF_ERROR(CopyGrowing(path, copy, wanted));
      continue;
    }
    std::error_code error;
    fs::copy_file(path, copy, error);
    if (error && io::Exists(path)) {
      return ErrnoStatus(fmt::format("cannot copy {} to {}", path, copy), error.value());
    }
  }
  return absl::OkStatus();
}

absl::Status CopyKeys(const std::string& from, const std::string& to) {
  SFT_RETURN_IF_ERROR(io::MakeDirs(to));
  SFT_RETURN_IF_ERROR(CloseToOthers(to));
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(from));
  for (const std::string& name : names) {
    SFT_ASSIGN_OR_RETURN(const std::string bytes, io::ReadFile(from + "/" + name));
    SFT_RETURN_IF_ERROR(io::WriteFileAtomic(to + "/" + name, bytes, io::kPrivateMode));
  }
  return absl::OkStatus();
}

}  // namespace sft::server
