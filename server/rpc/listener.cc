#include "server/rpc/listener.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/obs/log.h"
#include "common/rpc/listen.h"

namespace sft::server {
namespace {

// After an accept that failed, for want of descriptors or memory.
constexpr int kPauseMs = 100;

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(const rpc::Endpoint& endpoint,
                                                         ConnectionCap cap) {
  SFT_ASSIGN_OR_RETURN(std::vector<io::UniqueFd> sockets, rpc::Listen(endpoint));
  io::UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus("cannot create an eventfd", errno);
  std::unique_ptr<Listener> made(new Listener(std::move(sockets), std::move(wake), cap));
  return made;
}

Listener::Listener(std::vector<io::UniqueFd> sockets, io::UniqueFd wake, ConnectionCap cap)
    : sockets_(std::move(sockets)),
      wake_(std::move(wake)),
      cap_(std::move(cap)),
      port_(rpc::PortOf(sockets_.front().get())) {}

void Listener::Start(Take take) {
  take_ = std::move(take);
  thread_ = std::thread([this] {
    obs::NameThread("listener");
    Loop();
  });
}

void Listener::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof(one)) != sizeof(one)) {
    spdlog::error("the listener could not be woken");
  }
  thread_.join();
  sockets_.clear();
}

void Listener::Loop() {
  std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
  for (const io::UniqueFd& socket : sockets_) polled.push_back({socket.get(), POLLIN, 0});
  while (true) {
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;  // a signal
    if (polled[0].revents != 0) return;
    bool failed = false;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents != 0 && !AcceptAll(polled[i].fd)) failed = true;
    }
    // Woken early by Stop alone.
    if (failed) (void)::poll(polled.data(), 1, kPauseMs);
  }
}

bool Listener::AcceptAll(int socket) {
  while (true) {
    const int fd = ::accept4(socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0 && cap_.Takes(fd)) {
      take_(fd);
      continue;
    }
    if (fd >= 0) {
      const io::UniqueFd one_too_many(fd);
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
    if (errno == EINTR || errno == ECONNABORTED) continue;
    cap_.Failed(errno);
    return false;
  }
}

}  // namespace sft::server
