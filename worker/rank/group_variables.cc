#include "worker/rank/group_variables.h"

#include <fmt/format.h>

#include <charconv>

#include "worker/engine/base/error.h"

namespace sft::rank {
namespace {

[[noreturn]] void NotInitialized(const std::string& what) {
  throw engine::UserError(
      "Process group not initialized: " + what, "no_process_group",
      "Ranks are started by sft-worker (sftctl submit), which sets up their group. One that is "
      "started by hand needs --launch FILE with --rank N, or the variables RANK, WORLD_SIZE, "
      "LOCAL_RANK, MASTER_ADDR and MASTER_PORT, and all ranks of the job must be started.");
}

std::optional<int> Number(const std::string& name, const EnvLookup& env) {
  const std::optional<std::string> text = env(name);
  if (!text) return std::nullopt;
  int value = -1;
  const char* end = text->data() + text->size();
  const auto [at, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || at != end || value < 0) {
    NotInitialized(fmt::format("{} is \"{}\", not a number from 0", name, *text));
  }
  return value;
}

}  // namespace

int GlobalRank(int flag, const EnvLookup& env) {
  if (flag >= 0) return flag;
  const std::optional<int> rank = Number("RANK", env);
  if (!rank) NotInitialized("neither --rank N nor RANK is given");
  return *rank;
}

int LocalRank(int rank, const channel::RankLaunch& launch, const EnvLookup& env) {
  return Number("LOCAL_RANK", env).value_or(rank - launch.first_rank);
}

std::string MeetingAddress(const channel::RankLaunch& launch, const EnvLookup& env) {
  if (const std::optional<int> world = Number("WORLD_SIZE", env);
      world && *world != launch.world_size) {
    NotInitialized(fmt::format("WORLD_SIZE is {}, the launch file's world_size is {}", *world,
                               launch.world_size));
  }
  if (launch.world_size == 1) return "";
  if (!launch.rendezvous.empty()) return launch.rendezvous;
  const std::optional<std::string> host = env("MASTER_ADDR");
  const std::optional<std::string> port = env("MASTER_PORT");
  if (!host || !port) {
    NotInitialized(fmt::format("a rank of a world of {} has no rendezvous: {} not set",
                               launch.world_size,
                               host   ? "MASTER_PORT is"
                               : port ? "MASTER_ADDR is"
                                      : "MASTER_ADDR and MASTER_PORT are"));
  }
  return host->find(':') == std::string::npos ? *host + ":" + *port
                                              : fmt::format("[{}]:{}", *host, *port);
}

}  // namespace sft::rank
