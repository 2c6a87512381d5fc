#include "worker/shim/control_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace sft::shim {
namespace {

bool Ready(const std::vector<pollfd>& fds, int fd) {
  for (const pollfd& entry : fds) {
    if (entry.fd == fd) return entry.revents != 0;
  }
  return false;
}

}  // namespace

ControlSocket::~ControlSocket() {
  if (listener_.valid()) unlink(path_.c_str());
}

absl::Status ControlSocket::Listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());  // the launch file was checked for its length
  io::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus("cannot make a socket", errno);
  unlink(path.c_str());
  // Only its owner may send commands.
  const mode_t mask = umask(0177);
  const int bound = bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  const int bind_error = errno;
  umask(mask);
  if (bound != 0) return ErrnoStatus("cannot bind " + path, bind_error);
  if (listen(fd.get(), kMaxClients) != 0) return ErrnoStatus("cannot listen on " + path, errno);
  path_ = path;
  listener_ = std::move(fd);
  return absl::OkStatus();
}

void ControlSocket::AddTo(std::vector<pollfd>& fds) const {
  fds.push_back({listener_.get(), POLLIN, 0});
  for (const Client& client : clients_) fds.push_back({client.fd.get(), POLLIN, 0});
}

void ControlSocket::Serve(const std::vector<pollfd>& fds, const Handler& handler) {
  std::erase_if(clients_, [&](Client& client) {
    return Ready(fds, client.fd.get()) && !ServeClient(client, handler);
  });
  if (!Ready(fds, listener_.get())) return;
  io::UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) return;
  if (clients_.size() == kMaxClients) clients_.erase(clients_.begin());
  clients_.push_back({std::move(fd), ""});
}

bool ControlSocket::ServeClient(Client& client, const Handler& handler) {
  char buffer[kMaxLineBytes];
  const ssize_t got = read(client.fd.get(), buffer, sizeof(buffer));
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  client.received.append(buffer, static_cast<size_t>(got));
  size_t end = 0;
  while ((end = client.received.find('\n')) != std::string::npos) {
    const absl::StatusOr<channel::Command> command =
        channel::ParseCommand(std::string_view(client.received).substr(0, end));
    channel::Answer answer;
    if (command.ok()) {
      answer = handler(*command);
    } else {
      answer.error = std::string(Message(command.status()));
    }
    const std::string line = ToLine(answer);
    const ssize_t sent =
        send(client.fd.get(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent != static_cast<ssize_t>(line.size())) return false;
    client.received.erase(0, end + 1);
  }
  return client.received.size() < kMaxLineBytes;
}

}  // namespace sft::shim
