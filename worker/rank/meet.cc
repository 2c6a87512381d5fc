#include "worker/rank/meet.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>

#include "worker/channel/launch.h"
#include "worker/engine/base/error.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/dist/rendezvous.h"
#include "worker/rank/build.h"

namespace sft::rank {

int RunMeet(const Arguments& arguments, Clock& clock) {
  constexpr std::chrono::seconds kTimeout{15};
  const MonoTime start = clock.Mono();
  const engine::Rendezvous rendezvous({.host = arguments.host,
                                       .port = static_cast<uint16_t>(arguments.port),
                                       .rank = arguments.rank,
                                       .world = arguments.ranks,
                                       .prefix = "meet",
                                       .build = BuildText(),
                                       .timeout = kTimeout});
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

}  // namespace sft::rank
