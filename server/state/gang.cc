#include "server/state/gang.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace sft::server {
namespace {

// Nothing of it is on the node (told so, or never had), or nobody waits for the node any more.
bool IsGone(const Member& member) {
  return member.lost || member.state == MemberState::kDone || member.state == MemberState::kMissing;
}

Verdict Blame(const Member& member) {
  Verdict verdict = member.verdict;
  if (verdict.node.empty()) verdict.node = member.node;
  return verdict;
}

Verdict NodeRestarted(const Member& member) {
  Verdict verdict;
  verdict.domain = Verdict::Domain::kInfrastructure;
  verdict.code = "node_restarted";
  verdict.message = fmt::format("{} restarted; its processes are gone", member.node);
  verdict.advice = "look at the node's boot log if it was not meant to restart";
  verdict.node = member.node;
  return verdict;
}

Verdict NodeUnreachable(const Member& member) {
  Verdict verdict;
  verdict.domain = Verdict::Domain::kInfrastructure;
  verdict.code = "node_unreachable";
  verdict.message =
      member.seen
          ? fmt::format("{} was silent for longer than compute.unreachable_after", member.node)
          : fmt::format("{} did not take up the attempt: it was silent, or its worker hangs",
                        member.node);
  verdict.advice = "look at the node, its network and its sft-worker; it may come back at any time";
  verdict.node = member.node;
  return verdict;
}

// The failure a member shows, if any.
std::optional<Verdict> FailureOf(const Member& member) {
  if (member.lost) return NodeUnreachable(member);
  if (!member.verdict.empty() && !member.verdict.succeeded()) return Blame(member);
  if (member.state == MemberState::kMissing && member.seen) return NodeRestarted(member);
  return std::nullopt;
}

GangStep DecideLive(const Gang& gang) {
  if (gang.cancel_requested) {
    return {AttemptState::kStopping, std::nullopt,
            gang.cancel_reason.empty() ? "cancelled" : "cancelled: " + gang.cancel_reason};
  }
  for (const Member& member : gang.members) {
    if (const auto failure = FailureOf(member)) {
      return {AttemptState::kStopping, failure, failure->message};
    }
  }
  for (const Member& member : gang.members) {
    if (member.state == MemberState::kStopping) {
      return {AttemptState::kStopping, std::nullopt,
              fmt::format("{} stops: {}", member.node, member.reason)};
    }
  }
  const auto all_at_least = [&](MemberState state) {
    return std::all_of(gang.members.begin(), gang.members.end(),
                       [&](const Member& member) { return member.state >= state; });
  };
  const bool any_prepares =
      std::any_of(gang.members.begin(), gang.members.end(),
                  [](const Member& member) { return member.state >= MemberState::kPreparing; });
  if (gang.state == AttemptState::kPlaced && any_prepares)
    return {AttemptState::kPreparing, {}, ""};
  if (gang.state == AttemptState::kPreparing && all_at_least(MemberState::kRunning)) {
    return {AttemptState::kRunning, {}, ""};
  }
  if (gang.state == AttemptState::kRunning && all_at_least(MemberState::kDone)) {
    return {AttemptState::kSucceeded, gang.members.front().verdict, ""};
  }
  if (!gang.stop.empty()) return {AttemptState::kStopping, std::nullopt, gang.stop.message};
  return {};
}

Verdict Cancelled(const Gang& gang) {
  Verdict verdict;
  verdict.domain = Verdict::Domain::kUser;
  verdict.code = "cancelled";
  verdict.message = gang.cancel_reason.empty() ? "cancelled" : "cancelled: " + gang.cancel_reason;
  return verdict;
}

// The ranks of that node only lost others, or were told to stop: it does not say why. A node that
// does is believed instead.
bool IsWeak(const Verdict& verdict) {
  return verdict.code == "collective_failed" || verdict.code == "rank_stopped" ||
         verdict.domain == Verdict::Domain::kNone;
}

// The failure to blame, where it is not the one that is blamed already.
std::optional<Verdict> BetterFailure(const Gang& gang) {
  if (gang.cancel_requested || (!gang.verdict.empty() && !IsWeak(gang.verdict))) {
    return std::nullopt;
  }
  std::optional<Verdict> weak;
  for (const Member& member : gang.members) {
    const auto failure = FailureOf(member);
    if (!failure) continue;
    // Of one that was told to stop, any failure but the job's own is the stop's.
    if (!gang.stop.empty() && failure->domain != Verdict::Domain::kUser) continue;
    if (!IsWeak(*failure)) return failure;
    if (!weak) weak = failure;
  }
  return gang.verdict.empty() ? weak : std::nullopt;
}

GangStep DecideStopping(const Gang& gang) {
  if (const auto failure = BetterFailure(gang)) return {std::nullopt, failure, failure->message};
  if (!std::all_of(gang.members.begin(), gang.members.end(), IsGone)) return {};
  if (gang.cancel_requested) return {AttemptState::kCancelled, Cancelled(gang), "cancelled"};
  if (!gang.verdict.empty()) return {AttemptState::kFailed, std::nullopt, gang.verdict.message};
  if (!gang.stop.empty()) {
    // It may have been done before the word reached it.
    const bool done = std::all_of(gang.members.begin(), gang.members.end(), [](const Member& m) {
      return m.state == MemberState::kDone && m.verdict.succeeded();
    });
    if (done) return {AttemptState::kSucceeded, gang.members.front().verdict, ""};
    return {AttemptState::kFailed, gang.stop, gang.stop.message};
  }
  Verdict verdict;
  verdict.domain = Verdict::Domain::kUnknown;
  verdict.code = "no_verdict";
  verdict.message = "the attempt was stopped and no node says why";
  verdict.advice = "look at the logs of its ranks (sftctl logs) and of the worker";
  return {AttemptState::kFailed, verdict, verdict.message};
}

}  // namespace

std::string_view ToString(MemberState state) {
  switch (state) {
    case MemberState::kNone:
      return "not reported yet";
    case MemberState::kMissing:
      return "missing";
    case MemberState::kStaging:
      return "staging";
    case MemberState::kReady:
      return "ready";
    case MemberState::kPreparing:
      return "preparing";
    case MemberState::kRunning:
      return "running";
    case MemberState::kStopping:
      return "stopping";
    case MemberState::kFinishing:
      return "finishing";
    case MemberState::kDone:
      return "done";
  }
  return "unknown";
}

GangStep DecideGang(const Gang& gang) {
  if (gang.members.empty() || IsTerminal(gang.state)) return {};
  if (gang.state == AttemptState::kStopping) return DecideStopping(gang);
  return DecideLive(gang);
}

int64_t CollectedStep(int64_t current, const std::vector<Member>& members) {
  int64_t common = std::numeric_limits<int64_t>::max();
  for (const Member& member : members) {
    if (member.checkpoint_settled < current) return current;
    common = std::min(common, member.checkpoint_newest);
  }
  return members.size() < 2 ? 0 : std::max(current, common);
}

}  // namespace sft::server
