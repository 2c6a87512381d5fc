#include "worker/daemon/check_ranks.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/utf8.h"
#include "common/io/file.h"
#include "worker/base/child_process.h"

namespace sft::worker {
namespace {

constexpr std::chrono::seconds kMeetDeadline{40};

// A port that is free now on an address of this machine.
absl::StatusOr<int> FreePort(const std::string& address) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = getaddrinfo(address.c_str(), nullptr, &hints, &found); error != 0) {
    return NotFound(fmt::format("{}: {}", address, gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  const io::UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0) {
    return FailedPrecondition(
        fmt::format("{} cannot be listened on: {}", address, std::strerror(errno)));
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

// The line in which a rank says why it failed; LibTorch says more around it.
std::string WhatRankSays(std::string_view output) {
  constexpr std::string_view kName = "sft-rank: ";
  constexpr size_t kMostBytes = 400;
  if (const size_t at = output.find(kName); at != output.npos) {
    output.remove_prefix(at + kName.size());
  }
  return ToUtf8(output.substr(0, std::min(output.find('\n'), kMostBytes)));
}

}  // namespace

void CheckMeeting(const NodeSetup& setup, const std::string& library_path,
                  obs::CheckReport& report) {
  const char* advice =
      "--address names an address of this node that the other nodes reach, and no firewall may "
      "keep its own processes from it";
  const absl::StatusOr<int> port = FreePort(setup.address);
  if (!port.ok()) {
    report.Fail("address", std::string(Message(port.status())), advice);
    return;
  }
  std::vector<std::string> env;
  if (!library_path.empty()) env.push_back("LD_LIBRARY_PATH=" + library_path);
  const auto run = [&](int rank) {
    return RunChild({setup.rank_binary, "meet", "--host", setup.address, "--port",
                     std::to_string(*port), "--rank", std::to_string(rank), "--ranks", "2"},
                    env, kMeetDeadline, setup.rank_user);
  };
  absl::StatusOr<ChildResult> second;
  std::thread other([&] { second = run(1); });
  const absl::StatusOr<ChildResult> first = run(0);
  other.join();
  const auto problem = [](const absl::StatusOr<ChildResult>& rank) {
    if (!rank.ok()) return std::string(Message(rank.status()));
    return rank->ok() ? std::string() : WhatRankSays(rank->output);
  };
  const std::string one = problem(first), two = problem(second);
  if (!one.empty() || !two.empty()) {
    const bool both = !one.empty() && !two.empty() && one != two;
    // The one waits for the other, whose words are the cause.
    report.Fail("Gloo",
                both          ? fmt::format("{}; the other: {}", one, two)
                : one.empty() ? two
                              : one,
                advice);
    return;
  }
  const size_t at = first->output.find("gloo: ");
  const std::string text = at == std::string::npos ? first->output : first->output.substr(at + 6);
  report.Ok("Gloo", text.substr(0, text.find('\n')));
}

void CheckLimits(obs::CheckReport& report) {
  struct Limit {
    int what;
    const char* name;
    rlim_t least;
    const char* advice;
  };
  constexpr rlim_t kFiles = 4096;
  bool fine = true;
  for (const Limit& each :
       {Limit{RLIMIT_CPU, "processor time", RLIM_INFINITY,
              "the kernel ends ranks that reach it: `ulimit -t unlimited`, or LimitCPU=infinity of "
              "the unit"},
        Limit{RLIMIT_FSIZE, "size of a file", RLIM_INFINITY,
              "checkpoints are larger: `ulimit -f unlimited`, or LimitFSIZE=infinity of the unit"},
        Limit{RLIMIT_AS, "address space", RLIM_INFINITY,
              "CUDA maps more than the memory there is: `ulimit -v unlimited`, or LimitAS=infinity "
              "of the unit"},
        Limit{RLIMIT_NOFILE, "open files", kFiles,
              "`ulimit -n 65536`, or LimitNOFILE=65536 of the unit"}}) {
    rlimit limit{};
    if (getrlimit(each.what, &limit) != 0) continue;
    // Worker and ranks raise that of open files themselves.
    const rlim_t most = each.what == RLIMIT_NOFILE ? limit.rlim_max : limit.rlim_cur;
    if (most >= each.least) continue;
    fine = false;
    report.Warn("limits", fmt::format("{}: at most {}", each.name, most), each.advice);
  }
  if (fine) report.Ok("limits", "none on processor time, files and address space");
}

}  // namespace sft::worker
