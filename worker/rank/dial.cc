#include "worker/rank/dial.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "common/io/file.h"
#include "worker/engine/base/error.h"

namespace sft::rank {
namespace {

using std::chrono::milliseconds;

// A refusal comes from the machine itself.
Answered Outcome(int error) {
  if (error == 0) return {.listens = true, .reached = true, .error = ""};
  return {.listens = false, .reached = error == ECONNREFUSED, .error = strerror(error)};
}

}  // namespace

Answered Dial(const addrinfo& address, milliseconds patience) {
  const io::UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return {.error = strerror(errno)};
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return Outcome(0);
  if (errno != EINPROGRESS) return Outcome(errno);
  pollfd entry{fd.get(), POLLOUT, 0};
  if (poll(&entry, 1, static_cast<int>(patience.count())) != 1) return {.error = "no answer"};
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  return Outcome(error);
}

void ReachRankZero(const channel::RankLaunch& launch, Clock& clock, milliseconds patience) {
  const size_t colon = launch.rendezvous.rfind(':');
  if (launch.first_rank == 0 || colon == std::string::npos) return;
  std::string host = launch.rendezvous.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  constexpr milliseconds kPause{200};
  const MonoTime deadline = clock.Mono() + patience;
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error =
      getaddrinfo(host.c_str(), launch.rendezvous.c_str() + colon + 1, &hints, &found);
  std::string why = error != 0 ? gai_strerror(error) : "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  while (error == 0) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - clock.Mono());
    const Answered answered = Dial(*found, std::max(milliseconds(1), left));
    if (answered.reached) return;
    why = answered.error;
    if (clock.Mono() + kPause >= deadline) break;
    clock.Sleep(kPause);
  }
  throw engine::InfrastructureError(
      fmt::format("node {} does not reach rank 0's node at {}: {}", launch.node, launch.rendezvous,
                  why),
      "rendezvous_unreachable",
      "Check the network and firewalls between the two nodes, and that the worker of rank 0's node "
      "was given an --address that this one reaches.");
}

}  // namespace sft::rank
