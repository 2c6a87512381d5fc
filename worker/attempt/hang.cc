#include "worker/attempt/hang.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "common/base/duration.h"
#include "worker/attempt/verdict.h"

namespace sft::worker {
namespace {

using channel::FlightOp;
using channel::FlightPhase;
using Ranks = std::vector<const RankLook*>;

constexpr Nanos kMinPatience = std::chrono::seconds(2);
constexpr Nanos kMaxPatience = std::chrono::seconds(60);

std::string Number(double seconds) {
  return seconds < 10 ? fmt::format("{:.1f}", seconds) : fmt::format("{:.0f}", seconds);
}

// "rank 3", "ranks 0, 1"
std::string Names(const Ranks& ranks) {
  std::vector<int> numbers;
  for (const RankLook* look : ranks) numbers.push_back(look->rank);
  return fmt::format("rank{} {}", numbers.size() == 1 ? "" : "s", fmt::join(numbers, ", "));
}

bool Stopped(const RankLook& look) {
  return look.state == 'T' || look.state == 't' || look.state == 'D';
}

std::string ProcessText(const RankLook& look) {
  switch (look.state) {
    case 0:
      return "its process is gone";
    case 'T':
    case 't':
      return "its process is stopped (state T)";
    case 'D':
      return "its process hangs in the kernel (state D)";
    case 'Z':
      return "its process has ended";
    default:
      return look.busy ? "its process uses a CPU" : "its process sleeps";
  }
}

// The newest sequence number that anyone has started, by group.
std::map<std::string, uint64_t> NewestSequences(const std::vector<RankLook>& ranks) {
  std::map<std::string, uint64_t> newest;
  for (const RankLook& look : ranks) {
    if (!look.flight) continue;
    for (const FlightOp& op : look.flight->ops) {
      uint64_t& sequence = newest[op.group];
      sequence = std::max(sequence, op.sequence);
    }
  }
  return newest;
}

bool IsMember(const std::string& group, int rank) {
  if (group == "world") return true;
  const std::string list = "," + group.substr(0, group.find('#')) + ",";
  return list.find("," + std::to_string(rank) + ",") != std::string::npos;
}

// The newest sequence number of each group that the rank has started.
std::map<std::string, uint64_t> OwnSequences(const RankLook& look) {
  std::map<std::string, uint64_t> own;
  for (const FlightOp& op : look.flight->ops) own[op.group] = op.sequence;
  return own;
}

// Some group of the rank is further on without it.
bool IsBehind(const RankLook& look, const std::map<std::string, uint64_t>& newest) {
  if (!look.flight) return true;
  std::map<std::string, uint64_t> own = OwnSequences(look);
  return std::any_of(newest.begin(), newest.end(), [&](const auto& entry) {
    return IsMember(entry.first, look.rank) && own[entry.first] < entry.second;
  });
}

// It waits for a rank that has not come to the operation, as the next stage of a pipeline does.
bool IsHeldUp(const RankLook& look, const std::vector<RankLook>& ranks) {
  if (!look.flight || look.flight->waiting == 0) return false;
  const FlightOp& op = *look.flight->LastOp();
  return std::any_of(ranks.begin(), ranks.end(), [&](const RankLook& other) {
    if (other.rank == look.rank || !other.flight || !IsMember(op.group, other.rank)) return false;
    return OwnSequences(other)[op.group] < op.sequence;
  });
}

Nanos LimitOf(const std::vector<RankLook>& ranks, const HangLimits& limits) {
  for (const RankLook& look : ranks) {
    if (!look.flight || look.flight->phase != FlightPhase::kTraining ||
        look.flight->steps_done < 1) {
      return std::max(limits.step, limits.other);
    }
  }
  return limits.step;
}

// The ranks that hold up the others; none when all are in the same collective.
Ranks Culprits(const std::vector<RankLook>& ranks) {
  Ranks stopped, behind, outside;
  const auto newest = NewestSequences(ranks);
  for (const RankLook& look : ranks) {
    if (Stopped(look)) stopped.push_back(&look);
    if (IsBehind(look, newest)) behind.push_back(&look);
    if (!look.flight || !look.flight->InCollective()) outside.push_back(&look);
  }
  if (!stopped.empty()) return stopped;
  // Who is behind because of another is not to blame, unless all are.
  Ranks free;
  std::copy_if(behind.begin(), behind.end(), std::back_inserter(free),
               [&](const RankLook* look) { return !IsHeldUp(*look, ranks); });
  if (!free.empty()) return free;
  return behind.empty() ? outside : behind;
}

std::string Waiting(const std::vector<RankLook>& ranks, const Ranks& culprits, MonoTime now) {
  Ranks waiting;
  const FlightOp* op = nullptr;
  for (const RankLook& look : ranks) {
    if (std::find(culprits.begin(), culprits.end(), &look) != culprits.end()) continue;
    if (!look.flight || !look.flight->InCollective()) continue;
    waiting.push_back(&look);
    op = look.flight->LastOp();
  }
  if (op == nullptr) return "";
  return fmt::format("{} wait{} in {} for {} s", Names(waiting), waiting.size() == 1 ? "s" : "",
                     op->Describe(), Number(SecondsOf(now - op->started)));
}

std::string WhatTheyDo(const Ranks& culprits, const std::string& waiting) {
  const RankLook& first = *culprits.front();
  if (Stopped(first)) {
    return fmt::format("{} {}: {}", Names(culprits), culprits.size() == 1 ? "hangs" : "hang",
                       ProcessText(first));
  }
  if (waiting.empty()) {
    return fmt::format(
        "{} {} no progress: {}, and {}", Names(culprits), culprits.size() == 1 ? "makes" : "make",
        first.flight ? first.flight->Describe() : "not started yet", ProcessText(first));
  }
  const FlightOp* last = first.flight ? first.flight->LastOp() : nullptr;
  return fmt::format("{} did not enter the collective of the others (last: {}; {})",
                     Names(culprits), last == nullptr ? "none" : last->Describe(),
                     ProcessText(first));
}

void AddEvidence(const std::vector<RankLook>& ranks, MonoTime now, v1::Verdict& verdict) {
  for (const RankLook& look : ranks) verdict.add_evidence(DescribeRank(look, now));
}

void Blame(const Ranks& culprits, v1::Verdict& verdict) {
  if (culprits.empty()) return;
  verdict.set_rank(culprits.front()->rank);
  verdict.set_process(fmt::format("rank-{}", culprits.front()->rank));
}

std::string Advice(const GangView& gang, Nanos limit) {
  return fmt::format(
      "look at {} and at the log of the rank; where a step really takes longer than {} s, raise "
      "compute.hang_timeout (NCCL_TIMEOUT), now {} s",
      gang.node, Number(SecondsOf(limit)), Number(SecondsOf(gang.limits.step)));
}

}  // namespace

std::string DescribeRank(const RankLook& look, MonoTime now) {
  std::string text = fmt::format("rank {}", look.rank);
  if (!look.place.empty()) text += " on " + look.place;
  if (!look.flight) return fmt::format("{}: no record of what it did; {}", text, ProcessText(look));
  return fmt::format("{}: {} for {} s; {}", text, look.flight->Describe(),
                     Number(SecondsOf(now - look.flight->changed)), ProcessText(look));
}

std::optional<v1::Verdict> FindDesync(const std::vector<RankLook>& ranks, const GangView& gang) {
  // The kinds and sizes that the ranks gave one collective, from the oldest that any remembers.
  struct Key {
    std::string group;
    uint64_t sequence;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, std::map<std::string, Ranks>> said;
  for (const RankLook& look : ranks) {
    if (!look.flight) continue;
    for (const FlightOp& op : look.flight->ops) {
      said[{op.group, op.sequence}][op.Describe()].push_back(&look);
    }
  }
  for (const auto& [key, versions] : said) {
    if (versions.size() < 2) continue;
    const auto fewer = [](const auto& a, const auto& b) {
      return a.second.size() < b.second.size();
    };
    const auto minority = std::min_element(versions.begin(), versions.end(), fewer);
    const auto majority = std::max_element(versions.begin(), versions.end(), fewer);
    const bool even = minority->second.size() == majority->second.size();
    const auto& other = even ? *std::next(versions.begin()) : *majority;
    const auto& odd = even ? *versions.begin() : *minority;
    v1::Verdict verdict = SimpleVerdict(
        v1::Verdict::UNKNOWN, "desync",
        fmt::format("the ranks parted ways: {} called {}, {} called {}", Names(odd.second),
                    odd.first, Names(other.second), other.first),
        "this is a bug of the trainer or a node with other data or another version: compare the "
        "logs of the ranks and report it",
        gang.node);
    if (!even) Blame(odd.second, verdict);
    return verdict;
  }
  return std::nullopt;
}

std::optional<v1::Verdict> JudgeHang(const std::vector<RankLook>& ranks, const GangView& gang,
                                     MonoTime now) {
  MonoTime newest{};
  for (const RankLook& look : ranks) {
    if (look.flight) newest = std::max(newest, look.flight->changed);
  }
  if (newest == MonoTime{}) return std::nullopt;
  const Nanos limit = LimitOf(ranks, gang.limits);
  const Nanos quiet = now - newest;
  if (quiet < limit) return std::nullopt;
  if (auto desync = FindDesync(ranks, gang)) {
    AddEvidence(ranks, now, *desync);
    return desync;
  }
  const Ranks culprits = Culprits(ranks);
  const std::string waiting = Waiting(ranks, culprits, now);
  const bool in_collective = !waiting.empty();
  const bool others = static_cast<int>(ranks.size()) < gang.world;
  std::string message;
  if (!culprits.empty()) {
    message = WhatTheyDo(culprits, waiting);
    if (in_collective) message += "; " + waiting;
  } else {
    // The node that holds the rank to blame speaks first.
    if (others && quiet < limit + std::clamp(limit / 2, kMinPatience, kMaxPatience)) {
      return std::nullopt;
    }
    message = waiting + (others ? ": ranks of other nodes did not enter it, or the network "
                                  "between the nodes is broken"
                                : ", which all of them have entered: a device or a link hangs");
  }
  const bool nccl = gang.gpu && in_collective;
  v1::Verdict verdict =
      SimpleVerdict(v1::Verdict::INFRASTRUCTURE, nccl ? "nccl_timeout" : "rank_hang",
                    (nccl ? "NCCL timeout: " : "") + message +
                        fmt::format(" (no progress for {} s)", Number(SecondsOf(quiet))),
                    Advice(gang, limit), gang.node);
  Blame(culprits, verdict);
  AddEvidence(ranks, now, verdict);
  return verdict;
}

}  // namespace sft::worker
