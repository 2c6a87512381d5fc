#include "worker/attempt/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "common/base/utf8.h"
#include "common/io/file.h"
#include "worker/shipping/event_file.h"

namespace sft::worker {
namespace {

using channel::ExitCode;
using Process = channel::ShimStatus::Process;

// Of a program that could not be run, and of one that lacks a library.
constexpr int kCannotRun = 126, kLoaderFailed = 127;
constexpr int64_t kTailBytes = 2048;
constexpr int kTailLines = 8;
// A fatal event is one of the last lines of its file.
constexpr int64_t kEventTailBytes = 1 << 20;
// Less than this is a full disk: what its last writer did not get may have been larger.
constexpr int64_t kFullBelowBytes = 1 << 20;

std::string ReadTail(const std::string& path, int64_t max_bytes) {
  const absl::StatusOr<int64_t> size = io::FileSize(path);
  const absl::StatusOr<io::UniqueFd> fd = io::OpenForRead(path);
  if (!size.ok() || !fd.ok()) return "";
  std::string text(std::min(*size, max_bytes), '\0');
  const absl::StatusOr<size_t> got = io::ReadAt(
      fd->get(), *size - static_cast<int64_t>(text.size()), text.data(), text.size(), path);
  text.resize(got.value_or(0));
  return text;
}

std::string LastLines(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t begin = text.size();
  for (int line = 0; line < kTailLines && begin != std::string::npos && begin > 0; ++line) {
    begin = text.rfind('\n', begin - 1);
  }
  return begin == std::string::npos || begin == 0 ? text : text.substr(begin + 1);
}

bool Failed(const Process& process) {
  return process.exited && (process.exit_code != 0 || process.signal != 0);
}

std::string Who(const Process& process) {
  return process.rank < 0 ? process.name : fmt::format("rank {}", process.rank);
}

std::string HowItEnded(const Process& process) {
  if (process.signal != 0) {
    return fmt::format("{} was killed by signal {} ({})", Who(process), process.signal,
                       strsignal(process.signal));
  }
  return fmt::format("{} ended with exit code {}", Who(process), process.exit_code);
}

void ExplainSignal(int signal, const std::string& log, v1::Verdict& verdict) {
  const bool crash = signal == SIGSEGV || signal == SIGABRT || signal == SIGBUS ||
                     signal == SIGILL || signal == SIGFPE;
  verdict.set_domain(crash ? v1::Verdict::UNKNOWN : v1::Verdict::INFRASTRUCTURE);
  verdict.set_code(crash ? "rank_crashed" : "rank_killed");
  verdict.set_advice(
      crash
          ? fmt::format("read the end of its log ({}); a crash is a bug of the trainer or a fault "
                        "of the machine",
                        log)
          : "something on the node ended it: see dmesg there (out of memory?), then submit again");
}

// How to read what the process wrote.
std::string LogCommand(const Process& process) {
  if (process.rank < 0) return "sftctl logs JOB --prepare";
  return process.rank == 0 ? "sftctl logs JOB"
                           : fmt::format("sftctl logs JOB --rank {}", process.rank);
}

void ExplainExit(int exit_code, const std::string& log, v1::Verdict& verdict) {
  switch (exit_code) {
    case channel::kExitUserError:
      verdict.set_domain(v1::Verdict::USER);
      verdict.set_code("user_error");
      verdict.set_advice(
          fmt::format("read the end of its log ({}), correct the job and submit it again", log));
      return;
    case channel::kExitInfrastructure:
      verdict.set_domain(v1::Verdict::INFRASTRUCTURE);
      verdict.set_code("infrastructure");
      verdict.set_advice(
          fmt::format("read the end of its log ({}) and look at the node, then submit again", log));
      return;
    case kCannotRun:
    case kLoaderFailed:
      verdict.set_domain(v1::Verdict::INFRASTRUCTURE);
      verdict.set_code("start_failed");
      verdict.set_advice(fmt::format(
          "the program or one of its libraries is not there any more: read the end of its log ({}) "
          "and look at the node",
          log));
      return;
    case channel::kExitStopped:
      verdict.set_domain(v1::Verdict::INFRASTRUCTURE);
      verdict.set_code("rank_stopped");
      verdict.set_advice(
          "a signal on its node or a rank of another node asked it to end: look at the other "
          "nodes' "
          "verdicts, and who sends SIGTERM here");
      return;
    case channel::kExitInternal:
    case channel::kExitUsage:
      verdict.set_domain(v1::Verdict::UNKNOWN);
      verdict.set_code("internal_error");
      verdict.set_advice(fmt::format("this is a bug: report it with the log ({})", log));
      return;
    default:
      verdict.set_domain(v1::Verdict::UNKNOWN);
      verdict.set_code("rank_exited");
      verdict.set_advice(fmt::format("read the end of its log ({})", log));
  }
}

void ApplyFatal(const channel::FatalEvent& fatal, const std::string& who, v1::Verdict& verdict) {
  if (fatal.domain == "user") {
    verdict.set_domain(v1::Verdict::USER);
  } else if (fatal.domain == "infrastructure") {
    verdict.set_domain(v1::Verdict::INFRASTRUCTURE);
  } else {
    verdict.set_domain(v1::Verdict::UNKNOWN);
  }
  if (!fatal.code.empty()) verdict.set_code(fatal.code);
  if (!fatal.message.empty()) verdict.set_message(fmt::format("{}: {}", who, fatal.message));
  if (!fatal.advice.empty()) verdict.set_advice(fatal.advice);
}

}  // namespace

ProcessTraces ReadTraces(const std::string& attempt_dir, const std::string& process_name) {
  ProcessTraces traces;
  const std::string base = attempt_dir + "/" + process_name;
  traces.log_tail = LastLines(ReadTail(base + ".log", kTailBytes));
  traces.disk_full = io::FreeBytes(attempt_dir).value_or(kFullBelowBytes) < kFullBelowBytes;
  ForEachEvent(ReadTail(base + ".events", kEventTailBytes), [&](const channel::Event& event) {
    if (const auto* fatal = std::get_if<channel::FatalEvent>(&event.body)) traces.fatal = *fatal;
  });
  return traces;
}

Traces ReadAllTraces(const std::string& attempt_dir, const channel::ShimStatus& status) {
  Traces traces;
  for (const Process& process : status.processes) {
    if (Failed(process)) traces[process.name] = ReadTraces(attempt_dir, process.name);
  }
  return traces;
}

const Process* FindBlamed(const channel::ShimStatus& status, const Traces& traces) {
  // 0: it says that the job's owner is to blame; 2: others ended it or made it fail.
  const auto part = [&](const Process& process) {
    if (process.exit_code == channel::kExitUserError) return 0;
    if (process.exit_code == channel::kExitStopped || process.signal == SIGTERM) return 2;
    const auto found = traces.find(process.name);
    const bool cascade = process.signal == 0 && found != traces.end() && found->second.fatal &&
                         found->second.fatal->code == kCascadeCode;
    return cascade ? 2 : 1;
  };
  const Process* blamed = nullptr;
  for (const Process& process : status.processes) {
    if (!Failed(process)) continue;
    const auto key = [&](const Process& p) { return std::make_pair(part(p), p.order); };
    if (blamed == nullptr || key(process) < key(*blamed)) blamed = &process;
  }
  return blamed;
}

v1::Verdict SimpleVerdict(v1::Verdict::Domain domain, const std::string& code,
                          const std::string& message, const std::string& advice,
                          const std::string& node) {
  v1::Verdict verdict;
  verdict.set_domain(domain);
  verdict.set_code(code);
  verdict.set_message(message);
  verdict.set_advice(advice);
  verdict.set_rank(-1);
  verdict.set_node(node);
  return verdict;
}

v1::Verdict MakeVerdict(const channel::ShimStatus& status, const Traces& all_traces,
                        const std::string& node) {
  if (status.cause == "command") {
    return SimpleVerdict(v1::Verdict::NONE, "stopped", status.reason, "", node);
  }
  if (status.cause == "signal") {
    return SimpleVerdict(v1::Verdict::INFRASTRUCTURE, "rank_killed", status.reason,
                         fmt::format("was node {} shut down? See its boot log", node), node);
  }
  if (status.cause == "watch") {
    return SimpleVerdict(v1::Verdict::INFRASTRUCTURE, "rank_hang", status.reason,
                         fmt::format("look at {} and at the logs of the ranks", node), node);
  }
  if (status.cause == "fencing") {
    return SimpleVerdict(v1::Verdict::INFRASTRUCTURE, "fenced", status.reason,
                         "the node was out of reach for too long", node);
  }
  const Process* blamed = FindBlamed(status, all_traces);
  if (blamed == nullptr) {
    if (status.cause == "failure" || status.processes.empty()) {
      return SimpleVerdict(v1::Verdict::INFRASTRUCTURE, "not_started", status.reason,
                           "look at the worker's and the shim's log on the node", node);
    }
    return SimpleVerdict(v1::Verdict::NONE, "succeeded", "", "", node);
  }
  const auto found = all_traces.find(blamed->name);
  const ProcessTraces traces = found == all_traces.end() ? ProcessTraces{} : found->second;
  v1::Verdict verdict = SimpleVerdict(v1::Verdict::UNKNOWN, "", HowItEnded(*blamed), "", node);
  verdict.set_rank(blamed->rank);
  verdict.set_process(blamed->name);
  if (blamed->signal != 0) {
    ExplainSignal(blamed->signal, LogCommand(*blamed), verdict);
  } else {
    ExplainExit(blamed->exit_code, LogCommand(*blamed), verdict);
    // A process that was killed said nothing about it: what it said before is not why.
    if (traces.fatal) ApplyFatal(*traces.fatal, Who(*blamed), verdict);
    if (!traces.fatal && traces.disk_full && blamed->exit_code != channel::kExitUserError) {
      verdict.set_domain(v1::Verdict::INFRASTRUCTURE);
      verdict.set_code("disk_full");
      verdict.set_message(verdict.message() + "; the disk of the worker's data folder is full");
      verdict.set_advice(fmt::format("free space on node {}, then submit again", node));
    }
    // Where the shim could not start it, it says why itself.
    if (!traces.fatal && status.reason.find("did not start") != std::string::npos) {
      verdict.set_message(status.reason);
    }
  }
  // The one that is blamed first; what ended well is no evidence.
  verdict.add_evidence(HowItEnded(*blamed));
  for (const Process& process : status.processes) {
    if (&process != blamed && Failed(process)) verdict.add_evidence(HowItEnded(process));
  }
  if (!traces.log_tail.empty()) {
    // A process may print any bytes, and the tail may begin inside a character.
    verdict.add_evidence(
        fmt::format("last lines of {}'s log:\n{}", blamed->name, ToUtf8(traces.log_tail)));
  }
  return verdict;
}

v1::Verdict MakeStagingVerdict(const absl::Status& status, const std::string& node) {
  const std::string message(Message(status));
  if (absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
      absl::IsPermissionDenied(status)) {
    return SimpleVerdict(v1::Verdict::USER, "bad_input", message,
                         "correct the job and submit it again", node);
  }
  if (absl::IsFailedPrecondition(status)) {
    return SimpleVerdict(v1::Verdict::INFRASTRUCTURE, "dataset_lost", message,
                         "upload the data set again (`sftctl submit` of the same job does), then "
                         "submit or resume the job; the operator: look at the server's disk",
                         "");
  }
  if (absl::IsDataLoss(status)) {
    return SimpleVerdict(v1::Verdict::INFRASTRUCTURE, "checkpoint_lost", message,
                         "an earlier checkpoint is used, or the job begins again", "");
  }
  v1::Verdict verdict = MakeStartVerdict(status, node);
  if (verdict.code() == "start_failed") verdict.set_code("staging_failed");
  return verdict;
}

v1::Verdict MakeStartVerdict(const absl::Status& status, const std::string& node) {
  const std::string message(Message(status));
  if (absl::IsResourceExhausted(status)) {
    return SimpleVerdict(v1::Verdict::INFRASTRUCTURE, "disk_full", message,
                         fmt::format("free space on node {}, then submit again", node), node);
  }
  return SimpleVerdict(v1::Verdict::INFRASTRUCTURE, "start_failed", message,
                       fmt::format("look at the worker's log on node {}, then submit again", node),
                       node);
}

}  // namespace sft::worker
