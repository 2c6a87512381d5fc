#include "worker/base/data_dir_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

namespace sft::worker {
namespace {

constexpr std::chrono::seconds kPatience{10};
constexpr std::chrono::milliseconds kInterval{100};

// "process 4711"; a worker of the previous version wrote nothing into the file.
std::string Holder(const std::string& path) {
  const absl::StatusOr<std::string> text = io::ReadFile(path, 64);
  if (!text.ok() || text->size() < 2 || text->find_first_not_of("0123456789\n") != text->npos) {
    return "another process";
  }
  return "process " + text->substr(0, text->find('\n'));
}

}  // namespace

absl::StatusOr<io::UniqueFd> LockDataDir(const std::string& data_dir, Clock& clock) {
  const std::string path = data_dir + "/worker.lock";
  io::UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoStatus("cannot open " + path, errno);
  const MonoTime deadline = clock.Mono() + kPatience;
  bool told = false;
  while (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return ErrnoStatus("cannot lock " + path, errno);
    if (clock.Mono() >= deadline) {
      return AlreadyExists(
          fmt::format("another sft-worker ({}) uses {}: end it, or give another --data-dir",
                      Holder(path), data_dir));
    }
    if (!told) {
      spdlog::info("{} is in use by {}: waiting up to {} s for its end", data_dir, Holder(path),
                   kPatience.count());
    }
    told = true;
    clock.Sleep(kInterval);
  }
  // For the messages above; the lock itself does not need it.
  const std::string pid = fmt::format("{}\n", getpid());
  if (ftruncate(lock.get(), 0) != 0 ||
      pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    spdlog::warn("{}", Message(ErrnoStatus("cannot write " + path, errno)));
  }
  return lock;
}

}  // namespace sft::worker
