#include "server/database/data_dir_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

namespace sft::server {

namespace {

// " (pid 4711)", or nothing when it cannot be told.
std::string Holder(const std::string& path) {
  const absl::StatusOr<std::string> text = io::ReadFile(path, 64);
  if (!text.ok() || text->find_first_not_of("0123456789\n") != text->npos || text->size() < 2) {
    return "";
  }
  return fmt::format(" (pid {})", text->substr(0, text->find('\n')));
}

}  // namespace

absl::StatusOr<DataDirLock> DataDirLock::Acquire(const std::string& data_dir) {
  SFT_RETURN_IF_ERROR(io::MakeDirs(data_dir));
  const std::string path = data_dir + "/server.lock";
  io::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(fmt::format("cannot open {}", path), errno);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(fmt::format("cannot lock {}", path), errno);
    return FailedPrecondition(fmt::format(
        "another sft-server{} uses the data folder {}: stop it, or give another --data-dir",
        Holder(path), data_dir));
  }
  // Who holds it, for the message above; of no use to the lock itself.
  const std::string pid = fmt::format("{}\n", ::getpid());
  if (::ftruncate(fd.get(), 0) != 0 ||
      ::pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    spdlog::warn("{}", Message(ErrnoStatus(fmt::format("cannot write {}", path), errno)));
  }
  return DataDirLock(std::move(fd));
}

}  // namespace sft::server
