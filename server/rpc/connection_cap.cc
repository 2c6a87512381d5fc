#include "server/rpc/connection_cap.h"

#include <grpc/support/sync.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

// Of gRPC 1.51 (src/core/lib/iomgr/socket_mutator.h), which installs no header for it but takes it
// in ChannelArguments::SetSocketMutator. A test holds that a server is capped by it.
enum grpc_fd_usage {
  GRPC_FD_CLIENT_CONNECTION_USAGE,
  GRPC_FD_SERVER_LISTENER_USAGE,
  GRPC_FD_SERVER_CONNECTION_USAGE
};
struct grpc_mutate_socket_info {
  int fd;
  grpc_fd_usage usage;
};
struct grpc_socket_mutator_vtable {
  bool (*mutate_fd)(int fd, grpc_socket_mutator* mutator);
  int (*compare)(grpc_socket_mutator* a, grpc_socket_mutator* b);
  void (*destroy)(grpc_socket_mutator* mutator);
  bool (*mutate_fd_2)(const grpc_mutate_socket_info* info, grpc_socket_mutator* mutator);
};
struct grpc_socket_mutator {
  const grpc_socket_mutator_vtable* vtable;
  gpr_refcount refcount;
};
void grpc_socket_mutator_init(grpc_socket_mutator* mutator,
                              const grpc_socket_mutator_vtable* vtable);

namespace sft::server {
namespace {

struct Mutator : grpc_socket_mutator {
  std::shared_ptr<ConnectionCap> cap;
};

bool Mutate(const grpc_mutate_socket_info* info, grpc_socket_mutator* mutator) {
  if (info->usage == GRPC_FD_SERVER_CONNECTION_USAGE) {
    static_cast<Mutator*>(mutator)->cap->Take(info->fd);
  }
  return true;  // or the library would stop listening
}

int Compare(grpc_socket_mutator* a, grpc_socket_mutator* b) { return a < b ? -1 : a > b ? 1 : 0; }

void Destroy(grpc_socket_mutator* mutator) {
  const std::unique_ptr<Mutator> owned(static_cast<Mutator*>(mutator));
}

constexpr grpc_socket_mutator_vtable kTable = {nullptr, Compare, Destroy, Mutate};

class CapOption : public grpc::ServerBuilderOption {
 public:
  explicit CapOption(std::shared_ptr<ConnectionCap> cap) : cap_(std::move(cap)) {}
  void UpdateArguments(grpc::ChannelArguments* arguments) override {
    auto mutator = std::make_unique<Mutator>();
    mutator->cap = cap_;
    grpc_socket_mutator_init(mutator.get(), &kTable);
    arguments->SetSocketMutator(mutator.release());  // Destroy is called by the last who has it
  }
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>*) override {}

 private:
  const std::shared_ptr<ConnectionCap> cap_;
};

// Of a socket; each has one of its own. Nothing: the number is not open, or of another file.
std::optional<uint64_t> SocketInode(int fd) {
  struct stat found {};
  if (::fstat(fd, &found) != 0 || !S_ISSOCK(found.st_mode)) return std::nullopt;
  return found.st_ino;
}

}  // namespace

int ConnectionCap::Default() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return 512;
  const rlim_t all = std::min<rlim_t>(files.rlim_cur, 1 << 20);
  const rlim_t rest = std::max<rlim_t>(all / 4, std::min<rlim_t>(256, all / 2));
  return static_cast<int>(all - rest);
}

void ConnectionCap::Prune() {
  std::erase_if(open_, [](const auto& each) { return SocketInode(each.first) != each.second; });
}

void ConnectionCap::Take(int socket) {
  const std::optional<uint64_t> inode = SocketInode(socket);
  if (!inode) return;
  const MutexLock lock(mutex_);
  open_.erase(socket);  // closed since, or its number would not be given again
  const MonoTime now = clock_.Mono();
  if (static_cast<int>(open_.size()) >= most_ && now - pruned_ >= kLookAgain) {
    pruned_ = now;
    Prune();
  }
  if (static_cast<int>(open_.size()) < most_) {
    open_[socket] = *inode;
    return;
  }
  ::shutdown(socket, SHUT_RDWR);
  ++refused_;
  if (told_ != MonoTime{} && now - told_ < kTellAgain) return;
  told_ = now;
  spdlog::warn(
      "{} connections are open, as many as this server holds (LimitNOFILE less what it needs "
      "itself): {} more were closed at once",
      open_.size(), std::exchange(refused_, 0));
}

void CapConnections(std::shared_ptr<ConnectionCap> cap, grpc::ServerBuilder& builder) {
  builder.SetOption(std::make_unique<CapOption>(std::move(cap)));
}

}  // namespace sft::server
