#include "worker/rank/meeting_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "common/base/env.h"
#include "worker/engine/base/error.h"
#include "worker/rank/build.h"
#include "worker/rank/group_variables.h"

namespace sft::rank {
namespace {

// A collective waits for the slowest rank, and rank 0 may be writing and checking a model of tens
// of gigabytes. The end of a peer is noticed at once, whatever this is; a rank that hangs is
// noticed by the worker, which looks from outside and names it. This one is for a rank without a
// worker, so it is the longer of the two.
std::chrono::milliseconds CollectiveTimeout(const spec::JobSpec& spec) {
  constexpr std::chrono::seconds kLeast = std::chrono::minutes(30);
  return std::max(kLeast, std::chrono::seconds(spec.compute.hang_timeout)) +
         std::chrono::minutes(5);
}

}  // namespace

engine::RendezvousOptions MeetingPlace(const channel::RankLaunch& file, int rank,
                                       const spec::JobSpec& spec) {
  engine::RendezvousOptions options{.rank = rank,
                                    .world = file.world_size,
                                    .prefix = fmt::format("{}/{}", file.attempt_uid, file.epoch),
                                    .build = BuildText(),
                                    .node = file.node,
                                    .timeout = CollectiveTimeout(spec)};
  const std::string text = MeetingAddress(file, GetEnv);
  if (text.empty()) return options;
  const size_t colon = text.rfind(':');
  const char* end = text.data() + text.size();
  if (colon == std::string::npos || colon + 1 == text.size() ||
      std::from_chars(text.data() + colon + 1, end, options.port).ptr != end || options.port == 0) {
    throw engine::InternalError(fmt::format("the rendezvous \"{}\" is not host:port", text));
  }
  options.host = text.substr(0, colon);
  if (options.host.starts_with('[') && options.host.ends_with(']')) {
    options.host = options.host.substr(1, options.host.size() - 2);
  }
  return options;
}

}  // namespace sft::rank
