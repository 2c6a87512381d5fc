#include "client/output/wait_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/output/format.h"

namespace sft::client {
namespace {

// The last changes that are printed.
constexpr int kChangesShown = 3;

// "2 jobs of its project and 1 of others"
std::string AheadText(const v1::WaitExplanation& wait) {
  const int own = wait.ahead_own(), others = wait.ahead_others();
  std::string text;
  if (own > 0) text = fmt::format("{} job{} of its project", own, own == 1 ? "" : "s");
  if (others > 0) {
    text += fmt::format("{}{}{} of other projects", text.empty() ? "" : " and ", others,
                        text.empty() ? (others == 1 ? " job" : " jobs") : "");
  }
  return text;
}

std::string LineText(const v1::WaitExplanation& wait) {
  std::string text = fmt::format("place {} of {}", wait.outlook().place(), wait.line());
  const std::string ahead = AheadText(wait);
  if (ahead.empty()) return text;
  text += fmt::format("; ahead of it {}, {:.1f} GPU-hours", ahead, wait.ahead_gpu_hours());
  const int unknown = wait.ahead_unknown();
  if (unknown == 0) return text;
  return text + fmt::format(" ({} of unknown run time, counted with an hour)", unknown);
}

int Percent(int part, int all) { return static_cast<int>(100.0 * part / all + 0.5); }

std::string StartText(const v1::WhatIf& what_if) {
  std::string text = what_if.now()              ? "now"
                     : what_if.has_start_time() ? "at " + Utc(what_if.start_time())
                                                : "in its turn";
  if (what_if.has_promised_start_time()) {
    text += fmt::format(" ({} at the latest)", Utc(what_if.promised_start_time()));
  }
  return text;
}

// "place 2 -> 4, start 2026-01-31T12:00:00.000Z -> not known": what has changed of it.
std::string MoveText(const v1::WaitChange& change) {
  std::string text;
  const auto add = [&](const char* what, const std::string& before, const std::string& after) {
    if (before == after) return;
    text += fmt::format("{}{} {} -> {}", text.empty() ? "" : ", ", what, before, after);
  };
  const auto place = [](int number) { return number > 0 ? std::to_string(number) : "none"; };
  const auto time = [](bool has, const google::protobuf::Timestamp& at) {
    return has ? Utc(at) : "not known";
  };
  add("place", place(change.place_before()), place(change.place()));
  add("start", time(change.has_start_time_before(), change.start_time_before()),
      time(change.has_start_time(), change.start_time()));
  add("at the latest",
      time(change.has_promised_start_time_before(), change.promised_start_time_before()),
      time(change.has_promised_start_time(), change.promised_start_time()));
  return text;
}

Json KnownTimeJson(bool has, const google::protobuf::Timestamp& time) {
  return has ? Json(Utc(time)) : Json(nullptr);
}

}  // namespace

void PrintWait(const v1::WaitExplanation& wait,
               const std::function<void(const char*, const std::string&)>& line) {
  if (wait.has_outlook()) line("line", LineText(wait));
  if (wait.has_outlook() && wait.outlook().has_start_time() && wait.past_starts() > 0) {
    line(
        "estimates",
        fmt::format("of the last {} starts {} % came within a fifth of the wait that was expected, "
                    "{} % within a half",
                    wait.past_starts(), Percent(wait.past_within_20(), wait.past_starts()),
                    Percent(wait.past_within_50(), wait.past_starts())));
  }
  const char* label = "changed";
  const int shown = std::min(wait.history_size(), kChangesShown);
  for (int i = 0; i < shown; ++i) {
    const v1::WaitChange& change = wait.history(i);
    line(label, fmt::format("{}: {}", Utc(change.time()), MoveText(change)));
    line("", "  " + change.cause());
    label = "";
  }
  if (wait.history_size() > shown) {
    line("", fmt::format("and {} earlier changes (--json)", wait.history_size() - shown));
  }
  label = "sooner";
  for (const v1::WhatIf& what_if : wait.what_ifs()) {
    line(label, fmt::format("{}: {}", what_if.change(), StartText(what_if)));
    line("", "  " + what_if.command());
    label = "";
  }
}

Json WaitJson(const v1::WaitExplanation& wait) {
  Json what_ifs = Json::array();
  for (const v1::WhatIf& each : wait.what_ifs()) {
    what_ifs.push_back({{"change", each.change()},
                        {"now", each.now()},
                        {"start_time", KnownTimeJson(each.has_start_time(), each.start_time())},
                        {"promised_start_time",
                         KnownTimeJson(each.has_promised_start_time(), each.promised_start_time())},
                        {"end_time", KnownTimeJson(each.has_end_time(), each.end_time())},
                        {"command", each.command()}});
  }
  Json history = Json::array();
  for (const v1::WaitChange& each : wait.history()) {
    history.push_back(
        {{"time", Utc(each.time())},
         {"place_before", each.place_before()},
         {"place", each.place()},
         {"start_time_before",
          KnownTimeJson(each.has_start_time_before(), each.start_time_before())},
         {"start_time", KnownTimeJson(each.has_start_time(), each.start_time())},
         {"promised_start_time_before",
          KnownTimeJson(each.has_promised_start_time_before(), each.promised_start_time_before())},
         {"promised_start_time",
          KnownTimeJson(each.has_promised_start_time(), each.promised_start_time())},
         {"cause", each.cause()}});
  }
  return {{"reason", wait.reason()},
          {"outlook", wait.has_outlook() ? OutlookJson(wait.outlook()) : Json(nullptr)},
          {"line", wait.has_outlook() ? Json(wait.line()) : Json(nullptr)},
          {"ahead_own", wait.ahead_own()},
          {"ahead_others", wait.ahead_others()},
          {"ahead_gpu_hours", wait.ahead_gpu_hours()},
          {"ahead_unknown", wait.ahead_unknown()},
          {"past_starts", wait.past_starts()},
          {"past_within_20", wait.past_within_20()},
          {"past_within_50", wait.past_within_50()},
          {"what_ifs", what_ifs},
          {"history", history}};
}

}  // namespace sft::client
