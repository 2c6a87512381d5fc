#include "server/state/restart.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/duration.h"

namespace sft::server {
namespace {

using Domain = Verdict::Domain;

constexpr int kMaxDoublings = 20;

int64_t DelayOf(int quick, const RestartPace& pace) {
  const int64_t delay = pace.first_delay_us << std::min(quick, kMaxDoublings);
  return std::min(delay, pace.max_delay_us);
}

RestartDecision End(RestartDecision decision, std::string action) {
  decision.restart = false;
  decision.verdict.action = std::move(action);
  return decision;
}

// What was wrong last stays to be read below what ends the job now.
RestartDecision EndForNoProgress(RestartDecision decision, int64_t step) {
  Verdict& verdict = decision.verdict;
  const std::string last = fmt::format("last: {}: {}", verdict.code, verdict.message);
  verdict.evidence.insert(verdict.evidence.begin(), last);
  verdict.message = fmt::format("{} restarts in a row made no progress beyond step {}; {}",
                                kMaxIdleRestarts, step, last);
  verdict.code = "no_progress";
  return End(std::move(decision), "not restarted: it would fail again");
}

}  // namespace

RestartRules RestartRulesOf(const spec::JobSpec& spec) {
  RestartRules rules;
  rules.max_restarts = spec.compute.max_restarts;
  rules.max_unknown_restarts = spec.compute.max_unknown_restarts;
  rules.replace_unreachable = spec.compute.on_unreachable != spec::OnUnreachable::kWait;
  if (const auto limit = ParseDuration(spec.compute.unreachable_after)) {
    rules.unreachable_after_us = limit->count() * 1'000'000;
  }
  return rules;
}

RestartState WithProgress(RestartState state, const FailedAttempt& attempt) {
  if (attempt.resume_step < state.saved_step) state.furthest_step = 0;
  state.furthest_step = std::max(state.furthest_step, attempt.resume_step);
  state.saved_step = attempt.resume_step;
  const bool progressed =
      attempt.furthest_step > state.furthest_step || attempt.saved_step > state.saved_step;
  state.furthest_step = std::max(state.furthest_step, attempt.furthest_step);
  state.saved_step = std::max(state.saved_step, attempt.saved_step);
  if (progressed) state.idle = 0;
  return state;
}

RestartDecision DecideRestart(const FailedAttempt& failed, const RestartState& before,
                              const RestartRules& rules, const RestartPace& pace) {
  RestartDecision decision;
  decision.state = WithProgress(before, failed);
  decision.verdict = failed.verdict;
  RestartState& state = decision.state;
  if (failed.lived_us >= pace.quick_us) state.quick = 0;
  if (failed.verdict.domain == Domain::kUser) {
    return End(std::move(decision), "not restarted: the job itself has to be changed");
  }
  if (failed.verdict.code == kDatasetLost) {
    return End(std::move(decision), "not restarted: the data set has to be uploaded again first");
  }
  const bool infrastructure = failed.verdict.domain == Domain::kInfrastructure;
  const int most = infrastructure ? rules.max_restarts : rules.max_unknown_restarts;
  int& used = infrastructure ? state.restarts : state.unknown_restarts;
  const char* const kind = infrastructure ? "infrastructure" : "unexplained";
  decision.verdict.retries_left = std::max(0, most - used);
  if (used >= most) {
    return End(std::move(decision),
               most == 0 ? fmt::format("not restarted: the job allows none after {} failures", kind)
                         : fmt::format("not restarted: all {} restarts after {} failures are used "
                                       "up",
                                       most, kind));
  }
  if (state.idle >= kMaxIdleRestarts) {
    return EndForNoProgress(std::move(decision), state.furthest_step);
  }
  decision.restart = true;
  decision.delay_us = DelayOf(state.quick, pace);
  ++used;
  ++state.idle;
  ++state.quick;
  decision.verdict.retries_left = most - used;
  decision.verdict.action =
      fmt::format("restarted: {} of {} restarts after {} failures", used, most, kind);
  return decision;
}

Verdict SettingsLost(const std::string& problem) {
  Verdict verdict;
  verdict.domain = Domain::kInfrastructure;
  verdict.code = kSettingsLost;
  verdict.message = fmt::format("the server cannot read the job's stored settings: {}", problem);
  verdict.advice = "submit the job again from its file; the operator looks at the database";
  return verdict;
}

RestartDecision DecideWithoutSettings(const FailedAttempt& failed, const RestartState& before,
                                      const std::string& problem) {
  RestartDecision decision;
  decision.state = WithProgress(before, failed);
  if (failed.verdict.domain == Domain::kUser) {
    decision.verdict = failed.verdict;
    return End(std::move(decision), "not restarted: the job itself has to be changed");
  }
  decision.verdict = SettingsLost(problem);
  decision.verdict.node = failed.verdict.node;
  decision.verdict.rank = failed.verdict.rank;
  decision.verdict.evidence = failed.verdict.evidence;
  decision.verdict.evidence.insert(
      decision.verdict.evidence.begin(),
      fmt::format("last: {}: {}", failed.verdict.code, failed.verdict.message));
  return End(std::move(decision), "not restarted: it has to be submitted again");
}

}  // namespace sft::server
