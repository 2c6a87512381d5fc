#include "worker/rank/meet.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "worker/channel/launch.h"
#include "worker/engine/base/error.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/dist/rendezvous.h"
#include "worker/rank/build.h"
#include "worker/rank/dial.h"

namespace sft::rank {

namespace {

using std::chrono::milliseconds;

// Waits until rank 0 listens. The library's own tries go on for up to twice the time given.
void AwaitRankZero(const Arguments& arguments, Clock& clock, MonoTime deadline) {
  constexpr milliseconds kPause{100}, kLongestTry{3000};
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error =
      getaddrinfo(arguments.host.c_str(), std::to_string(arguments.port).c_str(), &hints, &found);
  if (error != 0) return;  // the rendezvous says it
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  while (!Dial(*found, kLongestTry).listens) {
    if (clock.Mono() >= deadline) {
      throw engine::InfrastructureError(
          fmt::format("rank {} of {}: nothing listened at {}:{} within {} s", arguments.rank,
                      arguments.ranks, arguments.host, arguments.port, arguments.timeout_seconds),
          "rendezvous_timeout");
    }
    clock.Sleep(kPause);
  }
}

int Meet(const Arguments& arguments, Clock& clock) {
  const MonoTime start = clock.Mono();
  const MonoTime deadline = start + std::chrono::seconds(arguments.timeout_seconds);
  if (arguments.rank > 0) AwaitRankZero(arguments, clock, deadline);
  const auto left =
      std::max(milliseconds(1000), std::chrono::ceil<milliseconds>(deadline - clock.Mono()));
  const engine::Rendezvous rendezvous({.host = arguments.host,
                                       .port = static_cast<uint16_t>(arguments.port),
                                       .rank = arguments.rank,
                                       .world = arguments.ranks,
                                       .prefix = "meet",
                                       .build = BuildText(),
                                       .timeout = left});
  const auto comm = engine::MakeCommunicator(rendezvous, at::kCPU);
  const double sum = engine::AllReduceSumDouble(*comm, arguments.rank + 1);
  const double expected = 0.5 * arguments.ranks * (arguments.ranks + 1);
  if (sum != expected) {
    throw engine::InternalError(fmt::format("the ranks add to {} and not {}", sum, expected));
  }
  const std::chrono::duration<double> took = clock.Mono() - start;
  const int written =
      std::fputs(fmt::format("gloo: {} processes met at {} and agree, in {:.2f} s\n",
                             arguments.ranks, arguments.host, took.count())
                     .c_str(),
                 stdout);
  return written >= 0 ? channel::kExitOk : channel::kExitInfrastructure;
}

}  // namespace

int RunMeet(const Arguments& arguments, Clock& clock) {
  // What LibTorch writes of its tries, with stack traces, says nothing that the error does not.
  FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  const std::string address = fmt::format("{}:{}", arguments.host, arguments.port);
  // For one who starts ranks by hand there is no job, no log and nobody who starts them again.
  const auto advise = [&](const std::string& code) -> std::string {
    if (code == "rendezvous_timeout") {
      return fmt::format(
          "Start the other ranks (`sft-rank meet` with --rank 0 to {} and the same --host, --port "
          "and --ranks) within --timeout seconds of each other, and see that no firewall keeps "
          "them from {}.",
          arguments.ranks - 1, address);
    }
    if (code == "rendezvous_port") {
      return "Give a --port that no other process has, and with --rank 0 a --host of this node.";
    }
    if (code == "rendezvous_host") return "Give a --host that every node resolves.";
    return "";
  };
  try {
    return Meet(arguments, clock);
  } catch (const engine::InfrastructureError& error) {
    const std::string advice = advise(error.code());
    throw engine::InfrastructureError(error.what(), error.code(),
                                      advice.empty() ? error.advice() : advice);
  }
}
}  // namespace sft::rank
