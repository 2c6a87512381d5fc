// sft-rank: one process of a job that trains (train), answers (generate --launch) or exports
// (export), the step before it (prepare), and text or logits from a trained model (generate,
// logits). Exit codes are channel::ExitCode; a rank that fails says why in a `fatal` event and on
// its standard error.

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "common/base/clock.h"
#include "common/base/env.h"
#include "common/base/version.h"
#include "worker/engine/base/error.h"
#include "worker/rank/answer_job.h"
#include "worker/rank/arguments.h"
#include "worker/rank/build.h"
#include "worker/rank/checkpoint_model.h"
#include "worker/rank/dial.h"
#include "worker/rank/export_job.h"
#include "worker/rank/failure.h"
#include "worker/rank/generate.h"
#include "worker/rank/group_variables.h"
#include "worker/rank/logits.h"
#include "worker/rank/meet.h"
#include "worker/rank/prepare.h"
#include "worker/rank/runaway_report.h"
#include "worker/rank/serve_job.h"
#include "worker/rank/stop_signal.h"
#include "worker/rank/train.h"

namespace sft::rank {
namespace {

// How long a node may be out of rank 0's reach before its attempt ends.
constexpr std::chrono::seconds kReachPatience{20};

// fmt::print throws where nothing can be written, which ends a program that is about to end.
void Say(const std::string& text) { std::fputs(text.c_str(), stderr); }

int Show(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return channel::kExitOk;
  Say("sft-rank: standard output cannot be written to\n");
  return channel::kExitInfrastructure;
}

int Usage(const absl::Status& status) {
  Say(fmt::format("sft-rank: {}\nTry: sft-rank --help\n", Message(status)));
  return channel::kExitUsage;
}

int Report(const std::exception& error, std::optional<EventLog>& events,
           const FailureContext& context = {}) {
  const Failure failure = DescribeFailure(error, context);
  if (const std::string trace = TraceOf(error); !trace.empty()) Say(trace + "\n");
  Say(fmt::format("sft-rank: {}\n", failure.event.message));
  if (!failure.event.advice.empty()) Say(fmt::format("{}\n", failure.event.advice));
  if (events) {
    try {
      events->Write(failure.event);
      events->Sync();
    } catch (const std::exception& second) {
      // The exit code still tells the domain.
      Say(fmt::format("sft-rank: the event could not be written: {}\n", second.what()));
    }
  }
  return failure.exit_code;
}

// Without destructors: those of a process group wait for peers that may be gone.
[[noreturn]] void EndNow(int code) {
  std::fflush(nullptr);
  _exit(code);
}

int RunJob(const Arguments& arguments, Clock& clock, MonoTime start) {
  auto launch = ReadLaunch(arguments.launch);
  if (!launch.ok()) return Usage(launch.status());
  const bool prepare = arguments.command == Command::kPrepare;
  const channel::RankLaunch& file = launch->file;
  const int rank = prepare ? -1 : GlobalRank(arguments.rank, GetEnv);
  if (!prepare && (rank < file.first_rank || rank >= file.first_rank + file.local_ranks)) {
    return Usage(
        InvalidArgument(fmt::format("--rank {} is not one of this node's ranks {} to {}", rank,
                                    file.first_rank, file.first_rank + file.local_ranks - 1)));
  }
  std::optional<EventLog> events;
  CommandInput commands(STDIN_FILENO);
  std::optional<TrainRun> run;
  try {
    const std::string process = prepare ? "prepare" : fmt::format("rank-{}", rank);
    events.emplace(EventLog::Open(EventPath(*launch, process), clock));
    if (prepare) {
      ReachRankZero(file, clock, kReachPatience);
      RunPrepare(*launch, *events, clock);
      return channel::kExitOk;
    }
    ReportRunaways({.event_file = EventPath(*launch, process)}, clock);
    CatchStopSignals();
    UseCheckpointModel(*launch);
    if (launch->spec.serves()) {
      return ServeJob({*launch, rank, *events, commands, clock, start}).Run();
    }
    if (launch->spec.generates()) {
      return AnswerJob({*launch, rank, *events, commands, clock, start}).Run();
    }
    if (launch->spec.exports()) {
      return ExportJob({*launch, rank, *events, commands, clock, start}).Run();
    }
    run.emplace(TrainContext{*launch, rank, *events, commands, clock, start, arguments.profile});
    const int code = run->Run();
    if (code == channel::kExitOk) return code;
    EndNow(code);
  } catch (const std::exception& error) {
    EndNow(Report(
        error, events,
        {.rank = rank, .spec = &launch->spec, .peak_memory_bytes = run ? run->PeakMemory() : 0}));
  }
}

// OpenMP's threads wait for work in a busy loop. Where ranks share cores with anything else that
// loop takes the time of the thread that has the work: generating ran 20 times slower on a loaded
// machine. The limit is read when the library is loaded, so the program starts itself again with it
// (0.2 s).
void LimitSpinning(char** argv) {
  if (GetEnv("OMP_WAIT_POLICY") || GetEnv("GOMP_SPINCOUNT")) return;
  setenv("GOMP_SPINCOUNT", "1000", 1);
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  // Without /proc, or where it cannot be started again, it runs as it is.
  if (!error) execv(program.c_str(), argv);
}

int RunByHand(const Arguments& arguments, Clock& clock) {
  try {
    ReportRunaways({}, clock);
    if (arguments.command == Command::kMeet) EndNow(RunMeet(arguments, clock));
    const bool generate = arguments.command == Command::kGenerate;
    generate ? RunGenerate(arguments) : RunLogits(arguments);
    return channel::kExitOk;
  } catch (const std::exception& error) {
    std::optional<EventLog> none;
    return Report(error, none);
  }
}

int RunOfJob(const Arguments& arguments, Clock& clock, MonoTime start) {
  try {
    return RunJob(arguments, clock, start);
  } catch (const engine::UserError& error) {
    std::optional<EventLog> none;  // whose it would be is what is missing
    return Report(error, none);
  }
}

int Main(int argc, char** argv) {
  Clock& clock = Clock::Real();
  const MonoTime start = clock.Mono();
  // The log is read while it grows; a full disk and a closed pipe are errors, not signals.
  setvbuf(stdout, nullptr, _IOLBF, 0);
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  const auto arguments = ParseArguments(std::vector<std::string>(argv + 1, argv + argc));
  if (!arguments.ok()) return Usage(arguments.status());
  switch (arguments->command) {
    case Command::kHelp:
      return Show(HelpText());
    case Command::kVersion:
      return Show(fmt::format("sft-rank {}\n", BuildText()));
    case Command::kGenerate:
    case Command::kExport:
    case Command::kLogits:
    case Command::kMeet:
    case Command::kTrain:
    case Command::kPrepare:
      LimitSpinning(argv);
      return arguments->launch.empty() ? RunByHand(*arguments, clock)
                                       : RunOfJob(*arguments, clock, start);
  }
  return channel::kExitInternal;
}

}  // namespace
}  // namespace sft::rank

int main(int argc, char** argv) { return sft::rank::Main(argc, argv); }
