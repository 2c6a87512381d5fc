#include "tests/sim/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "common/base/random.h"
#include "common/io/fault.h"
#include "common/io/file.h"

namespace sft::sim {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

constexpr int kNodes = 3;
constexpr int kGpusPerNode = 2;
// Faults and submits stop then.
constexpr seconds kTrouble{150};
// Every job has ended long before, unless it waits for ever.
constexpr minutes kRest{120};
// The last reports and acknowledgements after the last end take a moment.
constexpr seconds kSettles{5}, kSettlePatience{60};
constexpr size_t kTraceLines = 60;
// A disk that fills up takes some more writes: each of them may be the first that fails.
constexpr int kMostWritesLeft = 40;
// Files of the simulated machines lie in memory where the system has such a folder: nothing of a
// simulation depends on what a real disk does.
constexpr const char* kMemoryFolder = "/dev/shm";

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options)
      : options_(options),
        chance_(options.seed),
        dir_(io::MakeTempDir("sft-sim", io::IsDirectory(kMemoryFolder) ? kMemoryFolder : "")
                 .value()),
        server_(events_, chance_, disk_, dir_ + "/server"),
        user_(events_, chance_, server_, cluster_, checker_,
              {.model = "tiny",
               .data_file = dir_ + "/files/train.jsonl",
               .gpus_per_node = kGpusPerNode,
               .until = kTrouble},
              [this](const std::string& what) { Note(what); }),
        operator_(events_, ~options.seed, server_, nodes_, kTrouble,
                  [this](FleetChange change, const std::string& node) {
                    const auto fault =
                        static_cast<size_t>(Fault::kNodeDrained) + static_cast<size_t>(change);
                    ++result_.faults[fault];
                    Note(fmt::format("{} ({})", ToString(static_cast<Fault>(fault)), node));
                  }) {
    io::SetWriteFault([this](std::string_view path) { return TakeRoom(path); });
  }
  ~Simulation() {
    nodes_.clear();
    io::SetWriteFault(nullptr);
    (void)io::RemoveAll(dir_);
  }

  SimulationResult Run();

 private:
  void MakeNodes();
  void Note(const std::string& what);
  void FaultLater();
  void Break(Fault fault);
  void BreakServer(Fault fault, Nanos lasts);
  bool BreakNode(Fault fault, SimNode& node, Nanos lasts);
  void HealAll();
  absl::Status TakeRoom(std::string_view path);
  void CheckLogs();
  void Plant();
  void CheckNow();
  bool Resting();
  SimNode& AnyNode() { return *chance_.Pick(nodes_); }

  const SimulationOptions options_;
  SimulationResult result_;
  EventQueue events_;
  Chance chance_;
  Cluster cluster_;
  Disk disk_;
  const std::string dir_;
  SimServer server_;
  std::vector<std::unique_ptr<SimNode>> nodes_;
  Machines machines_;
  Checker checker_;
  std::deque<std::string> trace_;
  SimUser user_;
  SimOperator operator_;
  bool planted_ = false;
};

void Simulation::Note(const std::string& what) {
  const std::string line =
      fmt::format("{:9.3f} s  {}", std::chrono::duration<double>(events_.now()).count(), what);
  if (options_.trace) fmt::print("{}\n", line);
  trace_.push_back(line);
  if (trace_.size() > kTraceLines) trace_.pop_front();
}

void Simulation::MakeNodes() {
  const std::string models = dir_ + "/models";
  std::filesystem::create_directories(models + "/tiny");
  std::filesystem::create_directories(dir_ + "/files");
  const auto write = [](const std::string& path, const std::string& text) {
    if (!io::WriteFileAtomic(path, text).ok()) std::abort();
  };
  write(models + "/tiny/config.json", R"({"model_type":"llama"})");
  write(models + "/tiny/tokenizer.json", "{}");
  // A safetensors file with one tensor of 64 bytes.
  const std::string header = R"({"w":{"dtype":"U8","shape":[64],"data_offsets":[0,64]}})";
  std::string size(8, '\0');
  size[0] = static_cast<char>(header.size());
  write(models + "/tiny/model.safetensors", size + header + std::string(64, 'x'));
  write(dir_ + "/files/train.jsonl", "{\"text\":\"row\"}\n");
  const bool shared = chance_.OneIn(3), uploads = chance_.OneIn(2);
  for (int i = 0; i < kNodes; ++i) {
    const std::string name = fmt::format("node-{}", static_cast<char>('a' + i));
    const std::string data = fmt::format("{}/{}", dir_, name);
    std::filesystem::create_directories(data);
    nodes_.push_back(std::make_unique<SimNode>(
        events_, chance_, cluster_, server_,
        SimNode::Options{name, kGpusPerNode, data, models, dir_ + "/files",
                         shared ? dir_ + "/shared" : "", uploads}));
    machines_[name] = &nodes_.back()->machine();
  }
}

void Simulation::FaultLater() {
  events_.After(chance_.Between(seconds(2), seconds(20)), [this] {
    if (events_.now() > kTrouble) return;
    Break(static_cast<Fault>(chance_.Below(static_cast<int>(Fault::kNodeDrained))));
    FaultLater();
  });
}

void Simulation::Break(Fault fault) {
  // Mostly short, sometimes longer than anything is put up with.
  const Nanos lasts = chance_.OneIn(4) ? chance_.Between(seconds(40), seconds(160))
                                       : chance_.Between(seconds(1), seconds(30));
  SimNode& node = AnyNode();
  bool hit = true;
  switch (fault) {
    case Fault::kServerKilled:
    case Fault::kServerLosesPower:
    case Fault::kServerStopped:
    case Fault::kServerDiskFull:
    case Fault::kServerClockJumps:
      BreakServer(fault, lasts);
      break;
    default:
      hit = BreakNode(fault, node, lasts);
  }
  if (!hit) return;
  ++result_.faults[static_cast<size_t>(fault)];
  Note(fmt::format("{} ({}) for {:.1f} s", ToString(fault), node.name(),
                   std::chrono::duration<double>(lasts).count()));
}

void Simulation::BreakServer(Fault fault, Nanos lasts) {
  const auto boot = [this] {
    Note("the server boots");
    server_.Boot();
  };
  switch (fault) {
    case Fault::kServerKilled:
      server_.Kill();
      events_.After(lasts, boot);
      return;
    case Fault::kServerLosesPower:
      server_.LosePower();
      events_.After(lasts, boot);
      return;
    case Fault::kServerStopped:
      server_.Pause();
      events_.After(lasts, [this] { server_.Continue(); });
      return;
    case Fault::kServerDiskFull:
      disk_.SetFull(true);
      events_.After(lasts, [this] { disk_.SetFull(false); });
      return;
    default:
      server_.clock().JumpWall(chance_.OneIn(2) ? std::chrono::hours(1) : -std::chrono::hours(1));
  }
}

bool Simulation::BreakNode(Fault fault, SimNode& node, Nanos lasts) {
  switch (fault) {
    case Fault::kWorkerKilled:
      node.Kill();
      events_.After(lasts, [&node] { node.Boot(); });
      return true;
    case Fault::kMachineReboots:
    case Fault::kNodeDiskLost:
      node.Kill();
      node.machine().Reboot();
      if (fault == Fault::kNodeDiskLost) node.LoseCheckpoints();
      events_.After(lasts, [&node] { node.Boot(); });
      return true;
    case Fault::kNodeClockJumps:
      node.clock().JumpWall(chance_.OneIn(2) ? std::chrono::hours(1) : -std::chrono::hours(1));
      return true;
    case Fault::kNetworkCut:
      node.Cut();
      events_.After(lasts, [&node] { node.Reconnect(); });
      return true;
    case Fault::kNetworkSlow:
      node.SlowDown(seconds(3));
      events_.After(lasts, [&node] { node.SlowDown(Nanos(0)); });
      return true;
    case Fault::kAnswersLost:
      node.LoseAnswers(3);
      events_.After(lasts, [&node] { node.LoseAnswers(0); });
      return true;
    case Fault::kNodeDiskFull:
      node.machine().disk().Fill(chance_.Below(kMostWritesLeft));
      events_.After(lasts, [&node] { node.machine().disk().Empty(); });
      return true;
    case Fault::kRankKilled:
      return node.machine().KillRank();
    case Fault::kRankHangs:
      if (!node.machine().HangRank()) return false;
      // Somebody, or something, notices and kills it.
      events_.After(lasts, [&node] { node.machine().KillHung(); });
      return true;
    case Fault::kRankStuck:
      if (!node.machine().StickRank()) return false;
      events_.After(lasts, [&node] { node.machine().Unstick(); });
      return true;
    default:
      return node.machine().KillShim();
  }
}

// Asked before each write of a file: the folder's machine may have no room for it. A shared folder
// has a disk of its own.
absl::Status Simulation::TakeRoom(std::string_view path) {
  if (!path.starts_with(dir_)) return absl::OkStatus();
  path.remove_prefix(dir_.size() + 1);
  const std::string_view owner = path.substr(0, path.find('/'));
  if (owner == "server" && disk_.full()) return ResourceExhausted("the server's disk is full");
  const auto machine = machines_.find(owner);
  return machine == machines_.end() ? absl::OkStatus() : machine->second->disk().Take();
}

void Simulation::HealAll() {
  Note("everything is whole again");
  disk_.SetFull(false);
  server_.Continue();
  server_.Boot();
  operator_.Heal(kGpusPerNode);
  for (const auto& node : nodes_) {
    node->Reconnect();
    node->SlowDown(Nanos(0));
    node->LoseAnswers(0);
    node->machine().disk().Empty();
    node->machine().KillHung();
    node->machine().Unstick();
    node->Boot();
  }
}

// Those that have ended are there to the last byte, of the others a beginning: and of those that a
// machine took with it, whose part a new one of its name may have run again.
void Simulation::CheckLogs() {
  const std::set<std::string> ended = server_.EndedLogs();
  for (const auto& [name, text] : cluster_.logs) {
    const size_t slash = name.find('/');
    const std::string uid = name.substr(0, slash);
    const std::string rest = name.substr(slash + 1);
    const std::string stream =
        rest.ends_with("/prepare")
            ? server::LogStore::PrepareStream(uid, rest.substr(0, rest.find('/')))
            : server::LogStore::RankStream(uid, std::stoi(rest.substr(5)));
    const auto stored = server_.process()->logs.Read(stream, 0, 1 << 20);
    const bool prefix = stored.ok() && stored->offset == 0 && text.starts_with(stored->bytes);
    const bool whole = ended.contains(stream) && !cluster_.lost_logs.contains(name);
    if (!prefix || (whole && stored->bytes.size() != text.size())) {
      result_.violations.push_back(
          {Invariant::kLogsAreWhole,
           fmt::format("log {}: {} bytes were written, the server has {}", name, text.size(),
                       stored.ok()
                           ? fmt::format("{}{}", stored->bytes.size(), prefix ? "" : " others")
                           : stored.status().ToString())});
    }
  }
}

void Simulation::CheckNow() {
  if (server_.process() == nullptr) {
    for (Violation& each : checker_.CheckMachines(machines_)) {
      result_.violations.push_back(std::move(each));
    }
    return;
  }
  for (Violation& each : checker_.Check(*server_.process()->store, server_.life(), machines_,
                                        events_.now(), server_.answers() && !disk_.full())) {
    result_.violations.push_back(std::move(each));
  }
}

// The bug as a change of the database, or of what lies under it, behind the server's back.
void Simulation::Plant() {
  if (options_.planted == Planted::kNone || server_.process() == nullptr) return;
  const auto change = [this](const char* sql) {
    (void)server_.process()->store->Write([sql](server::Database& db) { return db.Execute(sql); });
  };
  const bool live = std::any_of(machines_.begin(), machines_.end(), [](const auto& each) {
    return !each.second->LiveAttempts().empty();
  });
  const bool submitted = !user_.jobs().empty();
  switch (options_.planted) {
    case Planted::kNone:
      return;
    case Planted::kSlotsFreedEarly:
      if (live) change("UPDATE allocations SET freed_us = 1");
      return;
    case Planted::kAttemptLeftBehind:
      if (live) change("UPDATE jobs SET attempt = attempt + 1 WHERE state = 3");
      return;
    case Planted::kMemberLost:
      if (live) change("DELETE FROM attempt_nodes");
      return;
    case Planted::kDiskLies:
      // The last commit before the loss was acknowledged and never reached the disk.
      if (!submitted) return disk_.SetLying(true);
      if (std::exchange(planted_, true)) return;
      server_.LosePower(/*keep_none=*/true);
      return server_.Boot();
    case Planted::kFinalStateChanged:
      // Now and then, so that the final state has been seen.
      if (events_.done() % 50 == 0) change("UPDATE jobs SET state = 3 WHERE state >= 5");
      return;
    case Planted::kReasonDropped:
      return change("UPDATE jobs SET reason = '' WHERE state = 1");
    case Planted::kLogBytesSwapped:
      if (planted_ || events_.now() < kTrouble) return;
      for (const auto& entry :
           std::filesystem::recursive_directory_iterator(dir_ + "/server/logs")) {
        if (!entry.is_regular_file() || entry.file_size() < 10) continue;
        planted_ = true;
        std::fstream(entry.path(), std::ios::in | std::ios::out) << "#";
      }
      return;
    case Planted::kAttemptsForgotten:
      return change("UPDATE jobs SET attempt = attempt - 1 WHERE attempt > 0");
    case Planted::kAttemptKept:
      return change("UPDATE attempts SET state = 3 WHERE state >= 5");
  }
}

bool Simulation::Resting() {
  if (events_.now() < kTrouble + kSettles || server_.process() == nullptr) return false;
  if (!checker_.AllFinal()) return false;
  return std::all_of(machines_.begin(), machines_.end(),
                     [](const auto& each) { return each.second->LiveAttempts().empty(); });
}

SimulationResult Simulation::Run() {
  SeedRandom(options_.seed);
  MakeNodes();
  server_.Boot();
  for (const auto& node : nodes_) node->Boot();
  user_.Start();
  FaultLater();
  if (options_.fleet_changes) operator_.Start();
  events_.At(kTrouble + seconds(1), [this] { HealAll(); });
  Nanos rested{0}, settles{0};
  while (result_.violations.empty() && events_.now() < kTrouble + kRest) {
    events_.RunNext();
    Plant();
    CheckNow();
    const Nanos now = events_.now();
    if (rested == Nanos(0) && Resting()) {
      rested = now;
      settles = now + kSettles;
    }
    if (rested == Nanos(0) || now < settles || events_.done() < options_.least_events) continue;
    settles = now + seconds(1);
    if (now - rested > kSettlePatience) break;
    if (checker_.CheckRest(*server_.process()->store, machines_).empty()) break;
  }
  if (result_.violations.empty()) {
    for (Violation& each : checker_.CheckRest(*server_.process()->store, machines_)) {
      result_.violations.push_back(std::move(each));
    }
    CheckLogs();
    for (const std::string& fault : cluster_.faults) {
      result_.violations.push_back({Invariant::kGangIsWhole, fault});
    }
  }
  result_.events = events_.done();
  result_.jobs = static_cast<int>(user_.jobs().size());
  if (server_.process() != nullptr) {
    result_.edges = Checker::Edges(*server_.process()->store);
    for (const std::string& id : user_.jobs()) {
      const absl::StatusOr<v1::Job> job = server_.process()->jobs.Get(id);
      ++result_.outcomes[job.ok() ? v1::Job::State_Name(job->state()) : "?"];
    }
  }
  for (const std::string& line : trace_) result_.trace += line + "\n";
  return std::move(result_);
}

}  // namespace

std::string_view ToString(Fault fault) {
  static constexpr std::array<std::string_view, kFaults> kNames = {
      "server killed",        "server loses power", "server stopped",     "server's disk full",
      "server's clock jumps", "worker killed",      "node's clock jumps", "machine reboots",
      "network cut",          "network slow",       "answers lost",       "rank killed",
      "rank hangs",           "rank stuck",         "shim killed",        "node's disk full",
      "node's disk lost",     "node drained",       "node removed",       "node replaced"};
  return kNames[static_cast<size_t>(fault)];
}

SimulationResult Simulate(const SimulationOptions& options) { return Simulation(options).Run(); }

}  // namespace sft::sim
