#include "worker/channel/claim.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

namespace sft::channel {

absl::StatusOr<io::UniqueFd> ClaimAttempt(const std::string& attempt_dir,
                                          const std::string& attempt_uid) {
  const std::string path = attempt_dir + "/shim.lock";
  io::UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640));
  if (!lock.valid()) return ErrnoStatus("cannot open " + path, errno);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return AlreadyExists("another shim runs attempt " + attempt_uid);
  }
  if (io::Exists(attempt_dir + "/status.json")) {
    return AlreadyExists("attempt " + attempt_uid + " was started before");
  }
  return lock;
}

}  // namespace sft::channel
