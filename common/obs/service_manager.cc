#include "common/obs/service_manager.h"

#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "common/base/env.h"

namespace sft::obs {

void TellServiceManager(std::string_view state) {
  const std::string path = GetEnv("NOTIFY_SOCKET").value_or("");
  sockaddr_un to{};
  if (path.empty() || path.size() >= sizeof(to.sun_path)) return;
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path.data(), path.size());
  if (path.front() == '@') to.sun_path[0] = '\0';  // an abstract socket name, not a file
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
                       reinterpret_cast<const sockaddr*>(&to), size) < 0) {
    spdlog::warn("cannot tell the service manager at {} {}: {}", path, state, std::strerror(errno));
  }
  if (fd >= 0) close(fd);
}

}  // namespace sft::obs
