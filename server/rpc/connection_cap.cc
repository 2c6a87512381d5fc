#include "server/rpc/connection_cap.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

namespace sft::server {
namespace {

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

bool ConnectionCap::IsNews() {
  const MonoTime now = clock_->Mono();
  if (told_ != MonoTime{} && now - told_ < kTellAgain) return false;
  told_ = now;
  return true;
}

bool ConnectionCap::Takes(int socket) {
  const std::optional<uint64_t> inode = SocketInode(socket);
  if (!inode) return false;
  open_.erase(socket);  // closed since, or its number would not be given again
  const MonoTime now = clock_->Mono();
  if (static_cast<int>(open_.size()) >= most_ && now - pruned_ >= kLookAgain) {
    pruned_ = now;
    Prune();
  }
  if (static_cast<int>(open_.size()) < most_) {
    open_[socket] = *inode;
    return true;
  }
  ++refused_;
  if (IsNews()) {
    spdlog::warn(
        "{} connections are open, as many as this server holds (LimitNOFILE less what it needs "
        "itself): {} more were closed at once",
        open_.size(), std::exchange(refused_, 0));
  }
  return false;
}

void ConnectionCap::Failed(int error) {
  if (!IsNews()) return;
  spdlog::error("connections cannot be accepted, and wait: {}",
                std::generic_category().message(error));
}

}  // namespace sft::server
