#include "worker/grading/judges.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/base/json.h"
#include "common/base/plain_text.h"
#include "common/grade/match.h"
#include "common/io/file.h"

namespace sft::grading {
namespace {

constexpr double kFirstWait = 1, kLongestWait = 30;
// Until a place is asked for again: others' questions end all the time.
constexpr double kBusyWait = 1;
// A judge that wants more is not waited for.
constexpr double kLongestAsked = 300;
constexpr int kLookMs = 200;
constexpr size_t kMostPromptBytes = size_t{1} << 20, kMostReplyBytes = size_t{4} << 20;

std::optional<double> WholeNumber(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos) return std::nullopt;
  text = text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

// Of the object from the first brace to the last one.
std::optional<double> MemberOf(const std::string& reply, const std::string& member) {
  const size_t begin = reply.find('{'), end = reply.rfind('}');
  if (begin == reply.npos || end == reply.npos || end < begin) return std::nullopt;
  const nlohmann::json object = ParseJson(std::string_view(reply).substr(begin, end - begin + 1));
  if (!object.is_object() || !object.contains(member)) return std::nullopt;
  const nlohmann::json& value = object[member];
  if (value.is_string()) return WholeNumber(value.get<std::string>());
  if (!value.is_number() || !std::isfinite(value.get<double>())) return std::nullopt;
  return value.get<double>();
}

std::optional<double> ByPattern(const std::string& reply, const std::string& expression) {
  const absl::StatusOr<grade::Pattern> pattern = grade::Pattern::Make(expression);
  if (!pattern.ok()) return std::nullopt;  // checked with the job file
  const std::optional<std::string> group = pattern->Last(reply);
  return group ? WholeNumber(*group) : std::nullopt;
}

JudgeReply Away(std::string why) { return {.error = std::move(why), .away = true}; }

// The answer's line; empty where there is none.
std::string ReadLine(int fd, const std::atomic<bool>& stop) {
  std::string read;
  while (!stop && read.find('\n') == read.npos && read.size() < kMostReplyBytes) {
    pollfd entry{fd, POLLIN, 0};
    if (poll(&entry, 1, kLookMs) <= 0) continue;
    char buffer[65536];
    const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
    if (got <= 0) return "";
    read.append(buffer, static_cast<size_t>(got));
  }
  const size_t end = read.find('\n');
  return end == read.npos ? "" : read.substr(0, end);
}

}  // namespace

JudgeReply ParseJudgeReply(std::string_view line) {
  const nlohmann::json json = ParseJson(line);
  const auto flag = [&](const char* key) { return json.contains(key) && json[key] == true; };
  JudgeReply reply;
  if (json.is_object() && json.contains("text") && json["text"].is_string()) {
    reply.text = json["text"].get<std::string>();
  } else if (json.is_object() && json.contains("error") && json["error"].is_string()) {
    reply.error = json["error"].get<std::string>();
    reply.again = flag("again");
    reply.away = flag("away");
    reply.busy = flag("busy");
    if (json.contains("after") && json["after"].is_number()) {
      reply.after_seconds = json["after"].get<double>();
    }
  } else {
    return Away("the node's worker answers with what is no answer");
  }
  return reply;
}

Verdict ReadReply(const spec::Grader& grader, const std::string& reply) {
  Verdict verdict;
  verdict.text = Shortened(reply, kMostVerdictText);
  const bool json = !grader.score_member.empty();
  const std::optional<double> given =
      json ? MemberOf(reply, grader.score_member) : ByPattern(reply, grader.score_pattern);
  if (given) {
    verdict.score = ScoreOf(grader, *given);
    return verdict;
  }
  verdict.score = InvalidArgument(
      fmt::format("{}'s reply holds no score: {} is not in \"{}\"", grader.name,
                  json ? fmt::format("a JSON object with the number {}", grader.score_member)
                       : fmt::format("a number as score_pattern {} says", grader.score_pattern),
                  Plain(reply, 80)));
  return verdict;
}

bool Judge::Wait(double seconds, const std::atomic<bool>& stop) {
  const MonoTime end =
      clock_.Mono() + std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(seconds));
  while (!stop && clock_.Mono() < end) {
    clock_.Sleep(std::min<Nanos>(end - clock_.Mono(), std::chrono::milliseconds(kLookMs)));
  }
  return !stop;
}

JudgeReply Judge::Reply(const std::string& prompt, const std::atomic<bool>& stop) {
  double wait = kFirstWait;
  MonoTime away_since = clock_.Mono();
  for (int calls = 0;;) {
    JudgeReply reply = ask_(grader_, prompt);
    const MonoTime now = clock_.Mono();
    if (reply.busy) {
      away_since = now;
      if (!Wait(kBusyWait, stop)) return reply;
      continue;
    }
    if (reply.away) {
      if (now - away_since > kAway) return reply;
    } else {
      away_since = now;
      ++calls;
      if (reply.error.empty() || !reply.again) return reply;
      if (calls > grader_.retries) {
        if (calls > 1) reply.error += fmt::format(" (the last of {} calls)", calls);
        return reply;
      }
      if (reply.after_seconds > kLongestAsked) {
        reply.error +=
            fmt::format(" (and wants {:.0f} s until the next call)", reply.after_seconds);
        return reply;
      }
    }
    if (!Wait(std::max(wait, reply.after_seconds), stop)) return reply;
    wait = std::min(2 * wait, kLongestWait);
  }
}

Verdict Judge::Grade(const Sample& sample, const std::atomic<bool>& stop) {
  Verdict failed;
  {
    const MutexLock lock(mutex_);
    if (silent_ >= kGiveUpAfter) {
      failed.score = Unavailable(
          fmt::format("{} was not asked any more: {} questions in a row got no reply; the last: {}",
                      grader_.name, silent_, last_error_));
      return failed;
    }
  }
  const std::string prompt =
      spec::FillJudgePrompt(grader_.prompt, sample.prompt, sample.answer, sample.reference);
  if (prompt.size() > kMostPromptBytes) {
    failed.score = InvalidArgument(fmt::format("{} was not asked: its prompt would have {} bytes",
                                               grader_.name, prompt.size()));
    return failed;
  }
  const JudgeReply reply = Reply(prompt, stop);
  const MutexLock lock(mutex_);
  if (reply.error.empty()) {
    silent_ = 0;
    return ReadReply(grader_, reply.text);
  }
  ++silent_;
  last_error_ = reply.error;
  failed.score = stop ? Aborted("stopped")
                      : Unavailable(fmt::format("{} gave no reply: {}", grader_.name, reply.error));
  return failed;
}

Judge::Ask AskWorkerOn(const std::string& socket_path, const std::atomic<bool>& stop) {
  return [socket_path, &stop](const spec::Grader& grader, const std::string& prompt) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (socket_path.empty()) {
      return JudgeReply{.error = "this node's worker asks no judges: it is of an earlier release"};
    }
    if (socket_path.size() >= sizeof(address.sun_path)) {
      return JudgeReply{
          .error = fmt::format("this node's worker can take no questions to judges: the path of "
                               "its socket has {} characters, {} at most: give it a shorter "
                               "--data-dir",
                               socket_path.size(), sizeof(address.sun_path) - 1)};
    }
    memcpy(address.sun_path, socket_path.data(), socket_path.size());
    const io::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd.valid() ||
        connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      return Away("the node's worker is away, or its log says why it takes no questions to judges");
    }
    std::string line = DumpJson(nlohmann::json{{"grader", grader.name}, {"prompt", prompt}}) + "\n";
    for (std::string_view rest = line; !rest.empty();) {
      const ssize_t sent = send(fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent <= 0) return Away("the node's worker takes no question");
      rest.remove_prefix(static_cast<size_t>(sent));
    }
    line = ReadLine(fd.get(), stop);
    return line.empty() ? Away("the node's worker went away") : ParseJudgeReply(line);
  };
}

}  // namespace sft::grading
