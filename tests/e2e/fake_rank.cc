// A stand-in for sft-rank that trains nothing, so that the service is tested in seconds and without
// LibTorch. It obeys the command line, the event files and the exit codes of a rank; what it does
// is written in the data set, as "fake:MODE":
//
//   ok             three steps, an adapter
//   wait           one step, then waits for the stop command
//   until PATH     one step, then goes on when the file PATH exists
//   user_error     prepare refuses the data
//   rank_killed    the last rank is killed by signal 9, the others wait
//   stubborn       ignores SIGTERM and the stop command
//   steps PATH     a step each 20 ms with one collective, until the file PATH exists
//   slow PATH      as steps, but the last rank needs 60 ms of its own for each step
//   desync PATH    as steps, but the last rank calls another collective and then all wait
//   peer_lost      the last rank is killed, the others report that a collective failed
//   eat_memory     the last rank takes memory until something ends it
//   lines N MS     N numbered lines and steps, MS milliseconds apart
//   flood MIB PATH so much of numbered lines as fast as it can, then as until PATH
//   train ...      saves and resumes; see fake_training.h
//
// Ranks of "steps" and "slow" meet through their flight records alone: a rank is at most one step
// ahead of the slowest, and waits for it in its collective.

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <sstream>
#include <string>

#include "common/base/clock.h"
#include "common/io/file.h"
#include "tests/e2e/fake_training.h"
#include "worker/channel/event.h"
#include "worker/channel/flight_record.h"
#include "worker/channel/launch.h"

namespace sft {
namespace {

using channel::RankLaunch;

constexpr std::chrono::milliseconds kLookInterval{20};

class EventFile {
 public:
  explicit EventFile(const std::string& path)
      : fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640)), path_(path) {}

  void Write(channel::EventBody body) {
    const double now = static_cast<double>(UnixMicros(Clock::Real().Wall())) / 1e6;
    const absl::Status written =
        io::WriteAll(fd_.get(), channel::ToLine({now, std::move(body)}), path_);
    if (!written.ok()) fprintf(stderr, "%s\n", std::string(Message(written)).c_str());
  }

 private:
  io::UniqueFd fd_;
  std::string path_;
};

std::string ModeOf(const RankLaunch& launch) {
  const std::string text = io::ReadFile(launch.train_file).value_or("");
  const size_t begin = text.find("fake:");
  if (begin == std::string::npos) return "ok";
  return text.substr(begin + 5, text.find('"', begin) - begin - 5);
}

// What came on standard input: "stop", "end of file", or nothing within the interval.
std::string NextCommand() {
  pollfd entry{STDIN_FILENO, POLLIN, 0};
  if (poll(&entry, 1, static_cast<int>(kLookInterval.count())) <= 0) return "";
  char buffer[4096];
  const ssize_t got = read(STDIN_FILENO, buffer, sizeof(buffer));
  if (got <= 0) return "end of file";
  const absl::StatusOr<channel::Command> command =
      channel::ParseCommand({buffer, static_cast<size_t>(got)});
  return command.ok() ? command->command : "";
}

// Waits for the file, or for the stop command where `path` is empty.
int Wait(const std::string& path, bool stubborn) {
  while (path.empty() || !io::Exists(path)) {
    const std::string command = NextCommand();
    if (command == "end of file") return channel::kExitInternal;
    if (command == "stop" && !stubborn) return channel::kExitStopped;
  }
  return channel::kExitOk;
}

int Prepare(const RankLaunch& launch) {
  EventFile events(launch.attempt_dir + "/prepare.events");
  const std::string name = launch.train_name.empty() ? launch.train_file : launch.train_name;
  printf("preparing %s with %s\n", name.c_str(), launch.model_dir.c_str());
  fflush(stdout);
  if (ModeOf(launch) == "user_error") {
    const std::string where = launch.train_name.empty() ? "" : launch.train_name + ": ";
    events.Write(channel::FatalEvent{"user", "bad_data", where + "line 1: nothing to learn",
                                     "add an answer"});
    return channel::kExitUserError;
  }
  events.Write(channel::ProgressEvent{"tokenise", 1, 1});
  events.Write(channel::PreparedEvent{.rows = 1, .used = 1, .tokens = 8, .loss_tokens = 4});
  return channel::kExitOk;
}

channel::StepEvent Step(int64_t number, int64_t total) {
  channel::StepEvent step;
  step.step = number;
  step.total_steps = total;
  step.loss = 2.0 / static_cast<double>(number);
  step.lr = 1e-4;
  step.grad_norm = 0.5;
  step.tokens = 64;
  step.tokens_per_second = 640;
  step.seconds = 0.1;
  step.gpu_memory_bytes = 1'000'000;
  return step;
}

int Deliver(const RankLaunch& launch, EventFile& events) {
  const std::string weights(100'000, 'w');
  for (const auto& [name, bytes] :
       {std::pair<std::string, std::string>{"adapter_config.json", "{}\n"},
        {"adapter_model.safetensors", weights}}) {
    if (!io::WriteFileAtomic(launch.output_dir + "/" + name, bytes).ok())
      return channel::kExitInfrastructure;
  }
  events.Write(channel::ArtifactEvent{"adapter", launch.output_dir,
                                      static_cast<int64_t>(weights.size()) + 3});
  return channel::kExitOk;
}

// Whether every other rank of this node has begun the collective of that number too.
bool OthersCame(const RankLaunch& launch, uint64_t number) {
  for (int r = launch.first_rank; r < launch.first_rank + launch.local_ranks; ++r) {
    const auto record = channel::ReadFlightRecord(channel::FlightPath(launch.attempt_dir, r));
    if (!record.ok()) return false;
    if (record->phase == channel::FlightPhase::kEnding) continue;
    if (record->ops.empty() || record->ops.back().number < number) return false;
  }
  return true;
}

// Steps with one collective each, until the file `gate` exists.
int StepOn(const RankLaunch& launch, int rank, const std::string& mode, const std::string& gate,
           channel::FlightRecorder& flight) {
  const bool last = rank == launch.world_size - 1;
  const bool slow = mode == "slow" && last;
  const int world = flight.Group("world");
  for (int64_t step = 1;; ++step) {
    const bool open = io::Exists(gate);
    flight.BeginStep(step);
    Clock::Real().Sleep(slow ? std::chrono::milliseconds(60) : kLookInterval);
    const bool odd = mode == "desync" && last && step == 3;
    const auto kind = odd ? channel::Collective::kBroadcast : channel::Collective::kAllReduce;
    const uint64_t op = flight.Start(world, kind, 4096);
    flight.Wait(op);
    while (!OthersCame(launch, op) || (mode == "desync" && step == 3)) {
      const std::string command = NextCommand();
      if (command == "end of file") return channel::kExitInternal;
      if (command == "stop") return channel::kExitStopped;
    }
    flight.EndWait(op, true);
    flight.EndOwnWork(/*all_finished=*/true);
    flight.EndStep();
    if (open) {
      flight.SetPhase(channel::FlightPhase::kEnding);  // one that did not see it yet goes on alone
      return channel::kExitOk;
    }
  }
}

int LosePeer(EventFile& events) {
  Wait("", /*stubborn=*/false);
  events.Write(channel::FatalEvent{"infrastructure", "collective_failed",
                                   "all-reduce (collective 7, 64 elements) failed: closed by peer",
                                   "look at the logs of the other ranks first"});
  return channel::kExitInfrastructure;
}

int EatMemory() {
  std::string all;
  while (true) all += std::string(size_t{1} << 20, 'x');
}

// "line 00000042 of rank 0": what a test expects of a log that lost nothing.
void PrintLine(int64_t number, int rank) {
  printf("line %08lld of rank %d\n", static_cast<long long>(number), rank);
}

// A step and a line each `pause`; ends early when it is told to.
int Lines(int64_t count, int pause_ms, int rank, EventFile& events) {
  for (int64_t number = 1; number <= count; ++number) {
    PrintLine(number, rank);
    fflush(stdout);
    if (number > 1) events.Write(Step(number, count));
    pollfd entry{STDIN_FILENO, POLLIN, 0};
    if (poll(&entry, 1, pause_ms) > 0) return channel::kExitStopped;
  }
  return channel::kExitOk;
}

int Flood(int64_t mib, const std::string& path, int rank) {
  constexpr int64_t kLineBytes = 24;
  const int64_t lines = (mib << 20) / kLineBytes;
  for (int64_t number = 1; number <= lines; ++number) PrintLine(number, rank);
  fflush(stdout);
  return Wait(path, false);
}

int Train(const RankLaunch& launch, int rank) {
  constexpr int64_t kSteps = 3;
  const std::string mode = ModeOf(launch);
  if (mode == "stubborn") signal(SIGTERM, SIG_IGN);
  EventFile events(launch.attempt_dir + "/rank-" + std::to_string(rank) + ".events");
  printf("rank %d of %d at %s on %s\n", rank, launch.world_size, launch.rendezvous.c_str(),
         launch.device.c_str());
  fflush(stdout);
  if (IsFakeTraining(mode)) {
    events.Write(channel::ReadyEvent{rank, launch.world_size, launch.device, 0, 10, 100, 0.01});
    const int code = RunFakeTraining(
        launch, rank, mode, [&](channel::EventBody body) { events.Write(std::move(body)); });
    return code == channel::kExitOk && rank == 0 ? Deliver(launch, events) : code;
  }
  events.Write(channel::ReadyEvent{rank, launch.world_size, launch.device, kSteps, 10, 100, 0.01});
  events.Write(Step(1, kSteps));
  const bool last = rank == launch.world_size - 1;
  if ((mode == "rank_killed" || mode == "peer_lost") && last) raise(SIGKILL);
  if (mode == "peer_lost") return LosePeer(events);
  if (mode == "eat_memory" && last) return EatMemory();
  int result = channel::kExitOk;
  if (mode == "wait" || mode == "stubborn" || mode == "rank_killed")
    result = Wait("", mode == "stubborn");
  if (mode == "eat_memory") result = Wait("", false);
  if (mode.starts_with("until ")) result = Wait(mode.substr(6), false);
  if (mode.starts_with("steps ") || mode.starts_with("slow ") || mode.starts_with("desync ")) {
    absl::StatusOr<channel::FlightRecorder> flight = channel::FlightRecorder::Create(
        channel::FlightPath(launch.attempt_dir, rank), rank, launch.world_size, Clock::Real());
    if (!flight.ok()) return channel::kExitInfrastructure;
    const size_t space = mode.find(' ');
    result = StepOn(launch, rank, mode.substr(0, space), mode.substr(space + 1), *flight);
  }
  std::istringstream words(mode);
  std::string kind, path;
  int64_t first = 0, second = 0;
  words >> kind >> first;
  if (kind == "lines" && words >> second) {
    result = Lines(first, static_cast<int>(second), rank, events);
  } else if (kind == "flood" && words >> path) {
    result = Flood(first, path, rank);
  }
  if (result != channel::kExitOk) return result;
  for (int64_t number = 2; kind != "lines" && number <= kSteps; ++number) {
    events.Write(Step(number, kSteps));
  }
  events.Write(channel::ConsistencyEvent{rank, "aa", "", true});
  printf("rank %d done\n", rank);
  return rank == 0 ? Deliver(launch, events) : channel::kExitOk;
}

int Main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "--version") {
    printf("sft-rank (stand-in)\n");
    return channel::kExitOk;
  }
  if (argc < 4 || std::string(argv[2]) != "--launch") return channel::kExitUsage;
  const absl::StatusOr<RankLaunch> launch =
      channel::ParseRankLaunch(io::ReadFile(argv[3]).value_or("(unreadable)"));
  if (!launch.ok()) return channel::kExitUsage;
  if (command == "prepare") return Prepare(*launch);
  if (command == "train" && argc == 6) return Train(*launch, std::stoi(argv[5]));
  return channel::kExitUsage;
}

}  // namespace
}  // namespace sft

int main(int argc, char** argv) { return sft::Main(argc, argv); }
