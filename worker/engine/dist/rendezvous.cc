#include "worker/engine/dist/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

[[noreturn]] void Fail(const RendezvousOptions& options, const std::string& what, const char* code,
                       const std::string& advice) {
  throw InfrastructureError(fmt::format("rank {} of {}: {}", options.rank, options.world, what),
                            code, advice);
}

AddressList Resolve(const RendezvousOptions& options, int socket_type) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = socket_type;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(options.host.c_str(), std::to_string(options.port).c_str(), &hints, &list);
  if (error != 0) {
    Fail(options,
         fmt::format("the rendezvous host \"{}\" has no address: {}", options.host,
                     gai_strerror(error)),
         "rendezvous_host",
         "Give the worker of rank 0's node an address that every node resolves.");
  }
  return {list, &freeaddrinfo};
}

// The store listens on the given address alone; left to itself it would listen on all of them.
int Listen(const RendezvousOptions& options, uint16_t& port) {
  const AddressList addresses = Resolve(options, SOCK_STREAM);
  const addrinfo& address = *addresses;
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(socket.get(), address.ai_addr, address.ai_addrlen) != 0 ||
      listen(socket.get(), SOMAXCONN) != 0) {
    Fail(options,
         fmt::format("cannot listen on {}:{}: {}", options.host, options.port, strerror(errno)),
         "rendezvous_port",
         "Another process has the port, or the address is not one of this node: the job is started "
         "again on another port.");
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  char service[NI_MAXSERV];
  getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, nullptr, 0, service, sizeof service,
              NI_NUMERICSERV);
  port = static_cast<uint16_t>(std::stoi(service));
  return socket.Release();
}

// The local address from which `host` is reached: connecting a datagram socket sends nothing.
std::string LocalAddress(const RendezvousOptions& options) {
  const AddressList addresses = Resolve(options, SOCK_DGRAM);
  Socket socket(::socket(addresses->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  char host[NI_MAXHOST];
  if (connect(socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&local), size, host, sizeof host, nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    Fail(options, fmt::format("no route to rank 0 at {}: {}", options.host, strerror(errno)),
         "rendezvous_route", "Check the network between this node and rank 0's.");
  }
  return host;
}

// Which builds the ranks are of, as each said when it joined, an older release with a single byte;
// empty: one, or this rank does not ask.
std::string DifferentBuilds(const RendezvousOptions& options,
                            const std::vector<std::vector<uint8_t>>& joined) {
  constexpr size_t kNodesShown = 3;
  std::map<std::string, std::set<std::string>> nodes;  // by build
  for (size_t rank = 0; rank < joined.size(); ++rank) {
    const std::string who(joined[rank].begin(), joined[rank].end());
    const size_t end = who.find('\n');
    const std::string node = end == std::string::npos ? "" : who.substr(end + 1);
    nodes[end == std::string::npos ? "an older release" : who.substr(0, end)].insert(
        node.empty() ? fmt::format("rank {}", rank) : "node " + node);
  }
  if (options.build.empty() || nodes.size() <= 1) return "";
  std::string text;
  for (const auto& [build, all] : nodes) {
    std::vector<std::string> names(all.begin(), all.end());
    const size_t left_out = names.size() - std::min(names.size(), kNodesShown);
    names.resize(names.size() - left_out);
    text += fmt::format("{}{} on {}", text.empty() ? "" : "; ", build, fmt::join(names, ", "));
    if (left_out > 0) text += fmt::format(" and {} more", left_out);
  }
  return text;
}

// Rank 0's store ends with it: it stays until the others have read why they end.
void WaitForReaders(const RendezvousOptions& options, c10d::Store& store) {
  constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(10);
  try {
    store.set(fmt::format("read/{}", options.rank), std::vector<uint8_t>{1});
    if (options.rank != 0) return;
    std::vector<std::string> keys;
    for (int r = 0; r < options.world; ++r) keys.push_back(fmt::format("read/{}", r));
    store.wait(keys, std::min(options.timeout, kPatience));
  } catch (const std::exception&) {
    // An older release does not say that it has read anything.
  }
}

}  // namespace

Rendezvous::Rendezvous(RendezvousOptions options) : options_(std::move(options)) {
  if (options_.rank < 0 || options_.rank >= options_.world) {
    throw InternalError(
        fmt::format("rank {} is outside a world of {}", options_.rank, options_.world));
  }
  if (options_.world == 1) return;
  c10d::TCPStoreOptions store_options;
  store_options.isServer = options_.rank == 0;
  if (store_options.isServer) {
    store_options.masterListenFd = Listen(options_, options_.port);
  }
  store_options.port = options_.port;
  store_options.numWorkers = static_cast<size_t>(options_.world);
  store_options.timeout = options_.timeout;
  // Waited for below, under the prefix and with a message of ours.
  store_options.waitWorkers = false;
  if (options_.bind.empty()) options_.bind = LocalAddress(options_);
  std::vector<std::string> keys;
  std::vector<std::vector<uint8_t>> joined;
  try {
    auto tcp = c10::make_intrusive<c10d::TCPStore>(options_.host, store_options);
    if (options_.rank == 0 && options_.on_listening) options_.on_listening(options_.port);
    store_ = c10::make_intrusive<c10d::PrefixStore>(options_.prefix, tcp);
    const std::string who = options_.build + "\n" + options_.node;
    store_->set(fmt::format("joined/{}", options_.rank),
                std::vector<uint8_t>(who.begin(), who.end()));
    for (int r = 0; r < options_.world; ++r) keys.push_back(fmt::format("joined/{}", r));
    store_->wait(keys, options_.timeout);
    joined = store_->multiGet(keys);
  } catch (const std::exception& error) {
    // LibTorch's words go on with a backtrace.
    std::string what = error.what();
    what.resize(std::min(what.find('\n'), what.size()));
    Fail(
        options_,
        fmt::format("not all ranks met at {}:{} within {} s: {}", options_.host, options_.port,
                    options_.timeout.count() / 1000, what),
        "rendezvous_timeout",
        "Look for a rank that ended before it joined (its log says why), and check that every node "
        "of the job reaches this address.");
  }
  const std::string builds = DifferentBuilds(options_, joined);
  if (builds.empty()) return;
  WaitForReaders(options_, *store_);
  Fail(options_, "the ranks are of different builds of sft-rank: " + builds, "rank_versions",
       "Install the same release on all nodes of the job and restart their workers; `sftctl nodes "
       "NODE` shows the build that a node runs.");
}

}  // namespace sft::engine
