#include "server/store/data_dir_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>

namespace sft::server {

absl::StatusOr<DataDirLock> DataDirLock::Acquire(const std::string& data_dir) {
  SFT_RETURN_IF_ERROR(io::MakeDirs(data_dir));
  const std::string path = data_dir + "/server.lock";
  io::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(fmt::format("cannot open {}", path), errno);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(fmt::format("cannot lock {}", path), errno);
    return FailedPrecondition(fmt::format(
        "another sft-server uses the data folder {}: stop it, or give another --data-dir",
        data_dir));
  }
  return DataDirLock(std::move(fd));
}

}  // namespace sft::server
