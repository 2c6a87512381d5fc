#include "tests/sim/machine.h"

#include <fmt/format.h>

#include <csignal>
#include <utility>

#include "common/spec/job_json.h"

namespace sft::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kWatch{1};
// How long ranks wait for one of the gang that is gone.
constexpr seconds kCollectivePatience{20};
// How long a shim that has nothing left to do tries to say so.
constexpr seconds kStatusPatience{60};
// Creation, bytes and rename of a small file.
constexpr int kWritesOfFile = 3;
constexpr int64_t kGpuBytes = 80'000'000'000;
constexpr int64_t kRankBytes = 40'000'000'000;

Nanos Seconds(double value) {
  return std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(value));
}

// "GPU-node-a-3" → 3.
std::vector<int> GpusOf(const std::string& uuids) {
  std::vector<int> gpus;
  for (size_t at = 0; at < uuids.size();) {
    const size_t end = std::min(uuids.find(',', at), uuids.size());
    const std::string uuid = uuids.substr(at, end - at);
    gpus.push_back(std::stoi(uuid.substr(uuid.rfind('-') + 1)));
    at = end + 1;
  }
  return gpus;
}

double LossAt(int64_t step) { return 10.0 / static_cast<double>(1 + step); }

}  // namespace

Machine::Machine(EventQueue& events, Chance& chance, Cluster& cluster, std::string name, int gpus)
    : events_(events), chance_(chance), cluster_(cluster), name_(std::move(name)), gpus_(gpus) {}

void Machine::Later(const ShimPtr& shim, Nanos delay, void (Machine::*what)(Shim&)) {
  events_.After(delay, [this, weak = std::weak_ptr<Shim>(shim), what] {
    const ShimPtr held = weak.lock();
    if (held != nullptr && held->Runs()) (this->*what)(*held);
  });
}

absl::Status Machine::Start(const std::string& shim_json) {
  SFT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(shim_json));
  auto shim = std::make_shared<Shim>();
  SFT_ASSIGN_OR_RETURN(shim->launch, channel::ParseShimLaunch(text));
  const std::string& dir = shim->launch.attempt_dir;
  SFT_ASSIGN_OR_RETURN(const std::string launch, io::ReadFile(dir + "/launch.json"));
  SFT_ASSIGN_OR_RETURN(shim->ranks_launch, channel::ParseRankLaunch(launch));
  const std::string& uid = shim->launch.attempt_uid;
  const auto former = shims_.find(uid);
  if (former != shims_.end() && (!former->second->dead || io::Exists(dir + "/status.json"))) {
    return AlreadyExists("a shim of this attempt has been started already");
  }
  SFT_RETURN_IF_ERROR(disk_.Take());  // its lock
  shim->spare = disk_.Take().ok();
  std::shared_ptr<Gang>& gang = cluster_.gangs[uid];
  if (gang == nullptr) gang = std::make_shared<Gang>();
  shim->gang = gang;
  shim->status.attempt_uid = uid;
  shim->status.epoch = shim->launch.epoch;
  shim->status.shim_pid = ++next_pid_;
  shim->status.shim_start_ticks = static_cast<uint64_t>(events_.now().count());
  shim->status.state = "preparing";
  shim->status.processes.push_back({.name = "prepare", .pid = ++next_pid_});
  shim->fence_at =
      events_.now() + Seconds(shim->launch.fencing_seconds) - Seconds(shim->launch.fencing_age);
  shims_[uid] = shim;
  WriteStatus(*shim);
  (void)Log(*shim, "prepare", "preparing\n");
  Later(shim, chance_.Between(milliseconds(200), seconds(5)), &Machine::EndPrepare);
  Later(shim, kWatch, &Machine::Watch);
  return absl::OkStatus();
}

void Machine::EndPrepare(Shim& shim) {
  if (shim.status.state != "preparing") return;
  shim.status.processes[0].exited = true;
  shim.status.processes[0].order = ++shim.ended;
  if (!disk_.Take().ok()) {  // for what it prepares
    shim.status.processes[0].exit_code = channel::kExitInfrastructure;
    return Stop(shim, "failure", "prepare failed");
  }
  shim.status.state = "running";
  for (const auto& process : shim.launch.ranks) {
    Rank rank{.number = process.rank, .gpus = {}, .alive = true};
    // One process a GPU, in the order of the list.
    const std::vector<int> gpus = GpusOf(process.env.at("CUDA_VISIBLE_DEVICES"));
    rank.gpus = {gpus.at(static_cast<size_t>(process.rank - shim.ranks_launch.first_rank))};
    rank.index = shim.status.processes.size();
    shim.status.processes.push_back(
        {.name = process.name, .rank = process.rank, .pid = ++next_pid_});
    shim.ranks.push_back(rank);
    shim.gang->running.insert(rank.number);
    (void)Log(shim, process.name, fmt::format("rank {} starts\n", rank.number));
  }
  ++version_;
  shim.joined_at = events_.now();
  shim.step = FirstStep(shim);
  shim.gang->step = std::max(shim.gang->step, shim.step);
  WriteStatus(shim);
  const channel::ReadyEvent ready{.rank = shim.ranks[0].number,
                                  .world = shim.ranks_launch.world_size,
                                  .total_steps = cluster_.scripts[shim.ranks_launch.job_id].steps};
  if (!Event(shim, shim.launch.ranks[0].name, ready)) DiskFull(shim, shim.ranks[0]);
  Later(shims_[shim.launch.attempt_uid], milliseconds(500), &Machine::Step);
}

// The step that the checkpoint has; each shard of it must be there.
int64_t Machine::FirstStep(const Shim& shim) {
  const std::string& dir = shim.ranks_launch.resume_dir;
  if (dir.empty()) return 0;
  const absl::StatusOr<std::string> manifest = io::ReadFile(dir + "/manifest.json");
  int64_t step = 0;
  int world = 0;
  if (!manifest.ok() || std::sscanf(manifest->c_str(), "%ld %d", &step, &world) != 2) {
    cluster_.faults.push_back(fmt::format("{} resumes from {}, which is none", name_, dir));
    return 0;
  }
  for (int rank = 0; rank < world; ++rank) {
    const absl::StatusOr<std::string> shard =
        io::ReadFile(fmt::format("{}/shard-{}-of-{}", dir, rank, world));
    if (!shard.ok() ||
        *shard != fmt::format("{} {} {}", cluster_.scripts[shim.ranks_launch.job_id].lineage, step,
                              rank)) {
      cluster_.faults.push_back(
          fmt::format("{} resumes from {}: shard {} is not there or another's", name_, dir, rank));
    }
  }
  return step;
}

void Machine::Step(Shim& shim) {
  const Script& script = cluster_.scripts[shim.ranks_launch.job_id];
  const ShimPtr self = shims_[shim.launch.attempt_uid];
  if (shim.status.state != "running") return;
  Gang& gang = *shim.gang;
  while (shim.step < gang.step && shim.status.state == "running") WriteStep(shim, shim.step + 1);
  if (shim.status.state != "running") return;
  if (shim.step >= script.steps) return Succeed(shim);
  const bool whole = static_cast<int>(gang.running.size()) == shim.ranks_launch.world_size;
  if (gang.broken || (!whole && events_.now() - shim.joined_at > kCollectivePatience)) {
    for (Rank& rank : shim.ranks) {
      if (!rank.alive || rank.hung) continue;
      (void)Event(
          shim, fmt::format("rank-{}", rank.number),
          channel::FatalEvent{"infrastructure", "collective_failed", "a rank is gone", "restart"});
      EndRank(shim, rank, channel::kExitInfrastructure, 0);
      return;
    }
  }
  if (whole) shim.joined_at = events_.now();
  if (whole && gang.hung == 0 && shim.ranks_launch.first_rank == 0) ++gang.step;
  Later(self, script.step, &Machine::Step);
}

void Machine::WriteStep(Shim& shim, int64_t step) {
  const Script& script = cluster_.scripts[shim.ranks_launch.job_id];
  if (step == script.user_error_at) {
    const std::string process = fmt::format("rank-{}", shim.ranks[0].number);
    (void)Event(shim, process,
                channel::FatalEvent{"user", "bad_data", "row 7 is wrong", "mend it"});
    return EndRank(shim, shim.ranks[0], channel::kExitUserError, 0);
  }
  shim.step = step;
  for (Rank& rank : shim.ranks) {
    const std::string process = fmt::format("rank-{}", rank.number);
    // What is printed to a full disk is lost, and the rank goes on.
    (void)Log(shim, process, fmt::format("rank {} step {}\n", rank.number, step));
    const channel::StepEvent event{
        .step = step, .total_steps = script.steps, .loss = LossAt(step), .seconds = 1};
    if (!Event(shim, process, event)) return DiskFull(shim, rank);
  }
  if (step < script.steps && (step % script.checkpoint_every == 0 || shim.checkpoint_asked)) {
    const std::string reason = shim.checkpoint_asked ? "asked" : "steps";
    shim.checkpoint_asked = false;
    if (!Checkpoint(shim, step, reason)) DiskFull(shim, shim.ranks[0]);
  }
}

// What a rank does that cannot write what it must.
void Machine::DiskFull(Shim& shim, Rank& rank) {
  (void)Event(shim, fmt::format("rank-{}", rank.number),
              channel::FatalEvent{"infrastructure", "disk_full", "no space", "free space"});
  EndRank(shim, rank, channel::kExitInfrastructure, 0);
}

// False: there was no room for it, and nothing of it is left.
bool Machine::Checkpoint(Shim& shim, int64_t step, const std::string& reason) {
  const std::string& root = shim.ranks_launch.checkpoint_dir;
  if (root.empty()) return true;
  const std::string dir = fmt::format("{}/step-{}", root, step);
  if (!WriteShards(shim, dir, step)) {
    if (!io::RemoveAll(dir + ".partial").ok()) std::abort();
    return false;
  }
  return Event(shim, fmt::format("rank-{}", shim.ranks[0].number),
               channel::CheckpointEvent{.step = step, .path = dir, .bytes = 100, .reason = reason});
}

bool Machine::WriteShards(const Shim& shim, const std::string& dir, int64_t step) {
  const std::string partial = dir + ".partial";
  const int world = shim.ranks_launch.world_size;
  bool written = io::MakeDirs(partial).ok();
  for (const Rank& rank : shim.ranks) {
    written =
        written && io::WriteFileAtomic(
                       fmt::format("{}/shard-{}-of-{}", partial, rank.number, world),
                       fmt::format("{} {} {}", cluster_.scripts[shim.ranks_launch.job_id].lineage,
                                   step, rank.number))
                       .ok();
  }
  if (shim.ranks_launch.first_rank == 0) {
    written =
        written &&
        io::WriteFileAtomic(partial + "/manifest.json", fmt::format("{} {}", step, world)).ok();
  }
  // On a shared folder every node has the same one.
  if (io::IsDirectory(dir)) {
    for (const std::string& name : io::ListDir(partial).value_or(std::vector<std::string>())) {
      written = written && io::RenameDurably(partial + "/" + name, dir + "/" + name).ok();
    }
    written = written && io::RemoveAll(partial).ok();
  } else {
    written = written && io::RenameDurably(partial, dir).ok();
  }
  return written;
}

void Machine::Succeed(Shim& shim) {
  for (Rank& rank : shim.ranks) {
    const std::string process = fmt::format("rank-{}", rank.number);
    if (rank.number == 0) {
      const std::string& dir = shim.ranks_launch.output_dir;
      const std::string weights = "weights of " + shim.ranks_launch.job_id;
      if (!io::WriteFileAtomic(dir + "/adapter", weights).ok() ||
          !Event(shim, process, channel::ArtifactEvent{"adapter", dir, 16})) {
        return DiskFull(shim, rank);
      }
    }
    (void)Log(shim, process, "done\n");
    EndRank(shim, rank, channel::kExitOk, 0);
  }
}

void Machine::Watch(Shim& shim) {
  if (shim.launch.fencing_seconds > 0 && events_.now() >= shim.fence_at) {
    Stop(shim, "fencing", "no word from the worker: fencing limit");
  }
  if (shim.status.state == "stopping" && events_.now() >= shim.kill_at) {
    for (Rank& rank : shim.ranks) {
      if (rank.alive && !rank.stuck) EndRank(shim, rank, 0, SIGKILL);
    }
    Settle(shim);
  }
  if (shim.status_unwritten) WriteStatus(shim);
  if (shim.status.state == "exited" && events_.now() >= shim.give_up_at) shim.dead = true;
  Later(shims_[shim.launch.attempt_uid], kWatch, &Machine::Watch);
}

void Machine::Stop(Shim& shim, const std::string& cause, const std::string& reason) {
  if (shim.status.state == "stopping" || shim.status.state == "exited") return;
  shim.status.state = "stopping";
  shim.status.cause = cause;
  shim.status.reason = reason;
  shim.kill_at = events_.now() + Seconds(shim.launch.grace_seconds);
  if (!shim.status.processes[0].exited) {
    shim.status.processes[0].exited = true;
    shim.status.processes[0].signal = SIGTERM;
    shim.status.processes[0].order = ++shim.ended;
  }
  WriteStatus(shim);
  Later(shims_[shim.launch.attempt_uid], chance_.Between(milliseconds(10), seconds(1)),
        &Machine::EndAll);
}

// What SIGTERM does.
void Machine::EndAll(Shim& shim) {
  for (Rank& rank : shim.ranks) {
    if (rank.alive && !rank.hung && !rank.stuck) EndRank(shim, rank, channel::kExitStopped, 0);
  }
  Settle(shim);
}

void Machine::EndRank(Shim& shim, Rank& rank, int exit_code, int signal) {
  if (!rank.alive) return;
  rank.alive = false;
  ++version_;
  shim.gang->running.erase(rank.number);
  channel::ShimStatus::Process& process = shim.status.processes[rank.index];
  process.exited = true;
  process.exit_code = exit_code;
  process.signal = signal;
  process.order = ++shim.ended;
  if (exit_code != 0 || signal != 0) {
    // Peers notice when a connection closes, some time later.
    shim.gang->broken = true;
    Stop(shim, "failure", fmt::format("rank {} failed", rank.number));
  }
  Settle(shim);
}

void Machine::Settle(Shim& shim) {
  const bool none_left = std::none_of(shim.ranks.begin(), shim.ranks.end(),
                                      [](const Rank& rank) { return rank.alive; });
  if (none_left && shim.status.state != "preparing" && shim.status.state != "exited") {
    shim.status.state = "exited";
    shim.give_up_at = events_.now() + kStatusPatience;
    shim.files.clear();
  }
  WriteStatus(shim);
}

void Machine::Die(Shim& shim) {
  for (Rank& rank : shim.ranks) {
    if (rank.alive) shim.gang->broken = true;
    rank.alive = false;
    shim.gang->running.erase(rank.number);
  }
  shim.dead = true;
  ++version_;
  shim.files.clear();
}

void Machine::WriteStatus(Shim& shim) {
  if (shim.dead || !io::IsDirectory(shim.launch.attempt_dir)) return;
  const std::string path = shim.launch.attempt_dir + "/status.json";
  absl::Status written = io::WriteFileAtomic(path, ToJson(shim.status));
  if (absl::IsResourceExhausted(written) && shim.status.state == "exited" &&
      std::exchange(shim.spare, false)) {
    disk_.GiveBack(kWritesOfFile);
    written = io::WriteFileAtomic(path, ToJson(shim.status));
  }
  shim.status_unwritten = !written.ok();
  if (!written.ok() && !absl::IsResourceExhausted(written)) {
    cluster_.faults.push_back(std::string(Message(written)));
  }
}

// False: there was no room.
bool Machine::Append(Shim& shim, const std::string& name, const std::string& bytes) {
  auto file = shim.files.find(name);
  if (file == shim.files.end()) {
    auto opened = io::AppendFile::Open(fmt::format("{}/{}", shim.launch.attempt_dir, name));
    if (!opened.ok()) return false;
    file = shim.files.emplace(name, *std::move(opened)).first;
  }
  return file->second.Append(bytes).ok();
}

bool Machine::Log(Shim& shim, const std::string& process, const std::string& line) {
  if (!Append(shim, process + ".log", line)) return false;
  const std::string& uid = shim.launch.attempt_uid;
  const std::string name = process == "prepare" ? fmt::format("{}/{}/prepare", uid, name_)
                                                : fmt::format("{}/{}", uid, process);
  cluster_.logs[name] += line;
  log_names_.insert(name);
  return true;
}

bool Machine::Event(Shim& shim, const std::string& process, channel::EventBody body) {
  const double time = std::chrono::duration<double>(events_.now()).count();
  return Append(shim, process + ".events", channel::ToLine({time, std::move(body)}));
}

absl::StatusOr<channel::Answer> Machine::Ask(const std::string& socket_path,
                                             const channel::Command& command) {
  for (const auto& [uid, shim] : shims_) {
    if (shim->launch.socket_path != socket_path) continue;
    if (!shim->Runs()) break;
    if (command.command == "renew") {
      shim->fence_at = events_.now() + Seconds(shim->launch.fencing_seconds) - Seconds(command.age);
    } else if (command.command == "stop") {
      Stop(*shim, command.cause.empty() ? "command" : command.cause, command.reason);
    } else if (command.command == "checkpoint") {
      shim->checkpoint_asked = true;
    }
    return channel::Answer{.ok = true, .error = "", .status = shim->status};
  }
  return Unavailable("no shim at " + socket_path);
}

bool Machine::Alive(const channel::ShimStatus& status) {
  const auto found = shims_.find(status.attempt_uid);
  return found != shims_.end() && found->second->Runs() &&
         found->second->status.shim_pid == status.shim_pid;
}

std::vector<worker::GpuReading> Machine::Gpus() const {
  std::vector<worker::GpuReading> gpus;
  for (int i = 0; i < gpus_; ++i) {
    gpus.push_back(
        {"NVIDIA H100 80GB HBM3", fmt::format("GPU-{}-{}-{}", name_, refits_, i), kGpuBytes, 0, 0});
  }
  for (const Live& live : LiveAttempts()) {
    for (const int gpu : live.gpus) gpus[static_cast<size_t>(gpu)].memory_used_bytes += kRankBytes;
  }
  return gpus;
}

std::vector<Machine::Live> Machine::LiveAttempts() const {
  std::vector<Live> all;
  for (const auto& [uid, shim] : shims_) {
    Live live{uid, shim->ranks_launch.job_id, shim->launch.epoch, {}};
    for (const Rank& rank : shim->ranks) {
      if (rank.alive) live.gpus.insert(live.gpus.end(), rank.gpus.begin(), rank.gpus.end());
    }
    if (!live.gpus.empty()) all.push_back(std::move(live));
  }
  return all;
}

std::vector<std::pair<Machine::Shim*, Machine::Rank*>> Machine::LiveRanks() {
  std::vector<std::pair<Shim*, Rank*>> live;
  for (auto& [uid, shim] : shims_) {
    for (Rank& rank : shim->ranks) {
      if (rank.alive && !rank.stuck) live.emplace_back(shim.get(), &rank);
    }
  }
  return live;
}

bool Machine::KillRank() {
  auto live = LiveRanks();
  if (live.empty()) return false;
  const auto [shim, rank] = chance_.Pick(live);
  EndRank(*shim, *rank, 0, SIGKILL);
  return true;
}

bool Machine::HangRank() {
  auto live = LiveRanks();
  if (live.empty()) return false;
  const auto [shim, rank] = chance_.Pick(live);
  if (!rank->hung) ++shim->gang->hung;
  return rank->hung = true;
}

void Machine::KillHung() {
  for (auto& [uid, shim] : shims_) {
    for (Rank& rank : shim->ranks) {
      if (rank.alive && rank.hung) EndRank(*shim, rank, 0, SIGKILL);
    }
  }
}

bool Machine::StickRank() {
  auto live = LiveRanks();
  if (live.empty()) return false;
  chance_.Pick(live).second->stuck = true;
  return true;
}

void Machine::Unstick() {
  for (auto& [uid, shim] : shims_) {
    for (Rank& rank : shim->ranks) rank.stuck = false;
  }
}

bool Machine::KillShim() {
  std::vector<Shim*> live;
  for (auto& [uid, shim] : shims_) {
    if (shim->Runs()) live.push_back(shim.get());
  }
  if (live.empty()) return false;
  Die(*chance_.Pick(live));
  return true;
}

void Machine::Reboot() {
  for (auto& [uid, shim] : shims_) Die(*shim);
}

}  // namespace sft::sim
