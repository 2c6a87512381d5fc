#include "worker/rank/runaway_report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/bytes.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/runaway.h"
#include "worker/rank/event_log.h"
#include "worker/rank/failure.h"

namespace sft::rank {
namespace {

using engine::Runaway;

constexpr char kAdvice[] =
    "correct the chat template (data.chat_template, or the model's), the model's tokenizer.json or "
    "the row, whichever makes so much of so little";
constexpr std::string_view kLineMark = "@LINE@";

struct Reporter {
  RunawayScene scene;
  std::optional<EventLog> events;  // of its own: another thread may be writing to the process's
  io::UniqueFd stack_fd;
  // The texts of a stack that is used up: nothing can be formatted then.
  std::string stack_event, stack_text;
  std::string stack_event_alone, stack_text_alone;  // where no row was in work
};

Reporter& TheReporter() {
  static Reporter reporter;
  return reporter;
}

Failure UserFailure(const std::string& code, const std::string& message) {
  return {.event = {.domain = "user", .code = code, .message = message, .advice = kAdvice},
          .exit_code = channel::kExitUserError};
}

std::string Where(const RunawayScene& scene, std::string_view line) {
  return scene.data_name.empty() ? "" : fmt::format("{}, line {}: ", scene.data_name, line);
}

Failure Describe(const Runaway& runaway, const RunawayScene& scene) {
  const std::string where =
      runaway.line > 0 ? Where(scene, std::to_string(runaway.line)) : std::string();
  switch (runaway.kind) {
    case Runaway::Kind::kCallMemory:
      return UserFailure("prepare_out_of_memory",
                         fmt::format("{}{} takes more than {} of memory for one text", where,
                                     runaway.what, BytesText(runaway.amount)));
    case Runaway::Kind::kTime:
      return UserFailure(
          "row_too_slow",
          fmt::format("{}the chat template and the tokenizer have worked on this row for {} s",
                      where, runaway.amount));
    case Runaway::Kind::kNoMemory:
    case Runaway::Kind::kStack:
      break;
  }
  try {
    ThrowRefusedMemory(scene.limit, fmt::format("{}{}", where, runaway.what));
  } catch (const engine::Error& error) {
    return DescribeFailure(error);
  }
}

// One write, and no call that may not be made in a signal handler.
void WriteAround(int fd, std::string_view text, std::string_view line) {
  const size_t at = text.find(kLineMark);
  if (at == std::string_view::npos) {
    [[maybe_unused]] const ssize_t written = write(fd, text.data(), text.size());
    return;
  }
  const std::string_view head = text.substr(0, at);
  const std::string_view tail = text.substr(at + kLineMark.size());
  std::array<iovec, 3> parts{{{const_cast<char*>(head.data()), head.size()},
                              {const_cast<char*>(line.data()), line.size()},
                              {const_cast<char*>(tail.data()), tail.size()}}};
  // The exit code says as much, should it not be written.
  [[maybe_unused]] const ssize_t written = writev(fd, parts.data(), parts.size());
}

[[noreturn]] void EndOnStack(const Reporter& reporter, int64_t line) {
  if (line == 0) {
    WriteAround(STDERR_FILENO, reporter.stack_text_alone, "");
    if (reporter.stack_fd.valid()) {
      WriteAround(reporter.stack_fd.get(), reporter.stack_event_alone, "");
    }
    _exit(channel::kExitUserError);
  }
  std::array<char, 20> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), line).ptr;
  const std::string_view number(digits.data(), static_cast<size_t>(end - digits.data()));
  WriteAround(STDERR_FILENO, reporter.stack_text, number);
  if (reporter.stack_fd.valid()) WriteAround(reporter.stack_fd.get(), reporter.stack_event, number);
  _exit(channel::kExitUserError);
}

void OnRunaway(const Runaway& runaway) {
  static std::atomic_flag told;
  while (told.test_and_set()) pause();  // another thread is ending the process
  Reporter& reporter = TheReporter();
  if (runaway.kind == Runaway::Kind::kStack) EndOnStack(reporter, runaway.line);
  const Failure failure = Describe(runaway, reporter.scene);
  std::fputs(fmt::format("sft-rank: {}\n{}\n", failure.event.message, failure.event.advice).c_str(),
             stderr);
  try {
    if (reporter.events) {
      reporter.events->Write(failure.event);
      reporter.events->Sync();
    }
  } catch (const std::exception& error) {
    std::fputs(fmt::format("sft-rank: the event could not be written: {}\n", error.what()).c_str(),
               stderr);
  }
  std::fflush(nullptr);
  _exit(failure.exit_code);
}

}  // namespace

void ReportRunaways(RunawayScene scene, const Clock& clock) {
  Reporter& reporter = TheReporter();
  reporter.scene = std::move(scene);
  const double now = static_cast<double>(UnixMicros(clock.Wall())) / 1e6;
  const auto format = [&](const std::string& where, std::string& event, std::string& text) {
    const Failure failure = UserFailure(
        "nested_too_deeply",
        where +
            "the chat template or the tokenizer nests values so deeply that the stack is used up");
    event = channel::ToLine({.time = now, .body = failure.event});
    text = fmt::format("sft-rank: {}\n{}\n", failure.event.message, failure.event.advice);
  };
  format(Where(reporter.scene, kLineMark), reporter.stack_event, reporter.stack_text);
  format("", reporter.stack_event_alone, reporter.stack_text_alone);
  if (!reporter.scene.event_file.empty() && !reporter.events) {
    reporter.events.emplace(EventLog::Open(reporter.scene.event_file, clock));
    reporter.stack_fd =
        io::UniqueFd(open(reporter.scene.event_file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  }
  engine::SetRunawayHandler(&OnRunaway);
}

}  // namespace sft::rank
