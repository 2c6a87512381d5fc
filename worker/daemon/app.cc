#include "worker/daemon/app.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>

#include "common/base/env.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/version.h"
#include "common/io/file.h"
#include "common/io/paths.h"
#include "common/obs/log.h"
#include "common/obs/service_manager.h"
#include "common/rpc/endpoint.h"
#include "worker/attempt/step_recorder.h"
#include "worker/base/child_environment.h"
#include "worker/base/data_dir_lock.h"
#include "worker/base/disk.h"
#include "worker/base/rank_user.h"
#include "worker/daemon/agent.h"
#include "worker/daemon/confinement_probe.h"
#include "worker/daemon/hub_options.h"
#include "worker/daemon/lease.h"
#include "worker/daemon/model_requests.h"
#include "worker/daemon/session.h"
#include "worker/gpus/gpu_selection.h"
#include "worker/node/cpus.h"
#include "worker/node/identity.h"
#include "worker/node/models.h"
#include "worker/node/network.h"
#include "worker/node/node_facts.h"
#include "worker/node/obeyed_generation.h"
#include "worker/node/peer_models.h"
#include "worker/node/rank_check.h"
#include "worker/node/torch_locator.h"
#include "worker/transfer/asker.h"
#include "worker/transfer/file_sender.h"

namespace sft::worker {
namespace {

using std::chrono::seconds;

constexpr seconds kModelScanInterval{30};
constexpr seconds kGpuProbeInterval{10};
constexpr std::chrono::minutes kDataCleaningInterval{10};
constexpr std::chrono::hours kCertificateInterval{1};

std::string HostName() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

// Without trailing slashes and "." or ".." parts.
absl::StatusOr<std::string> Absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return ErrnoStatus("cannot find the current folder", error.value());
  std::string normal = absolute.lexically_normal().string();
  if (normal.size() > 1 && normal.ends_with('/')) normal.pop_back();
  return normal;
}

}  // namespace

absl::StatusOr<std::string> OwnProgram() {
  char path[4096] = {};
  if (readlink("/proc/self/exe", path, sizeof(path) - 1) < 0) {
    return ErrnoStatus("cannot find this program's file", errno);
  }
  return std::string(path);
}

namespace {

std::vector<std::string> HubDirs() {
  if (const auto dir = GetEnv("HF_HUB_CACHE")) return {*dir};
  if (const auto home = GetEnv("HF_HOME")) return {*home + "/hub"};
  if (const auto home = GetEnv("HOME")) return {*home + "/.cache/huggingface/hub"};
  return {};
}

}  // namespace

absl::StatusOr<NodeSetup> MakeSetup(const Options& options, const std::string& program) {
  NodeSetup setup;
  setup.node = options.node.empty() ? DefaultNodeName(HostName(), options.ephemeral) : options.node;
  SFT_ASSIGN_OR_RETURN(setup.data_dir, Absolute(options.data_dir));
  SFT_ASSIGN_OR_RETURN(setup.shared_dir, options.shared.empty() ? setup.data_dir + "/shared"
                                                                : Absolute(options.shared));
  setup.has_shared = !options.shared.empty();
  setup.checkpoint_upload_limit = static_cast<int64_t>(options.checkpoint_upload_limit_gb * 1e9);
  for (const std::string& dir : options.models) {
    SFT_ASSIGN_OR_RETURN(std::string path, Absolute(dir));
    if (!io::IsDirectory(path)) {
      return InvalidArgument(fmt::format("--models {}: no such folder", dir));
    }
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    setup.model_dirs.push_back(std::move(path));
  }
  setup.hub_dirs = HubDirs();
  if (!options.model_cache.empty()) {
    SFT_ASSIGN_OR_RETURN(std::string path, Absolute(options.model_cache));
    setup.hub_dirs.insert(setup.hub_dirs.begin(), std::move(path));
  }
  setup.roots = setup.model_dirs;
  for (const std::string& dir : options.data_roots) {
    SFT_ASSIGN_OR_RETURN(std::string path, Absolute(dir));
    setup.roots.push_back(std::move(path));
  }
  for (const std::string& dir : options.grader_roots) {
    SFT_ASSIGN_OR_RETURN(std::string path, Absolute(dir));
    setup.grader_roots.push_back(std::move(path));
  }
  constexpr double kMebi = 1 << 20;
  setup.grader_memory_mb = static_cast<int64_t>(options.grader_memory_gb * 1e9 / kMebi);
  setup.roots.push_back(setup.shared_dir);
  if (options.dev) setup.roots = {"/"};
  const std::string beside = program.substr(0, program.rfind('/'));
  SFT_ASSIGN_OR_RETURN(
      setup.rank_binary,
      Absolute(options.rank_binary.empty() ? beside + "/sft-rank" : options.rank_binary));
  SFT_ASSIGN_OR_RETURN(
      setup.shim_binary,
      Absolute(options.shim_binary.empty() ? beside + "/sft-shim" : options.shim_binary));
  if (!io::Exists(setup.shim_binary)) {
    return NotFound(
        fmt::format("{} is missing: give its place with --shim-binary", setup.shim_binary));
  }
  SFT_ASSIGN_OR_RETURN(setup.rank_user, ChooseRankUser(options.rank_user, options.dev, geteuid()));
  setup.address = options.address;
  setup.place = options.place;
  setup.network = NetworkSettingsOfEnvironment();
  if (!options.network_env.empty()) {
    constexpr int64_t kMostBytes = 1 << 20;
    SFT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(options.network_env, kMostBytes));
    absl::StatusOr<NetworkSettings> given = ParseNetworkSettings(text);
    if (!given.ok()) {
      return InvalidArgument(
          fmt::format("--network-env {}: {}", options.network_env, Message(given.status())));
    }
    for (auto& [name, value] : *given) setup.network.insert_or_assign(name, std::move(value));
  }
  setup.cpus = options.cpus > 0 ? options.cpus : UsableCpus();
  setup.cpus_given = options.cpus > 0;
  setup.grace_seconds = options.grace_seconds;
  setup.log_limit_bytes = int64_t{options.log_limit_mb} << 20;
  setup.prepare_memory_bytes = static_cast<int64_t>(options.prepare_memory_gb * 1e9);
  SFT_ASSIGN_OR_RETURN(setup.disk_marks, io::ParseDiskMarks(options.disk_low, options.disk_full));
  SFT_RETURN_IF_ERROR(io::MakeDirs(setup.data_dir));
  SFT_RETURN_IF_ERROR(io::MakeDirs(setup.shared_dir));
  return setup;
}

namespace {

// The id is made by the first worker of a data folder: a restarted worker has it, another worker
// does not.
absl::StatusOr<std::string> DataDirId(const std::string& data_dir) {
  const std::string path = data_dir + "/id";
  absl::StatusOr<std::string> id = io::ReadFile(path, 256);
  if (!absl::IsNotFound(id.status())) return id;
  const std::string made = RandomUuid();
  SFT_RETURN_IF_ERROR(io::WriteFileAtomic(path, made));
  return made;
}

int64_t MemoryBytes() {
  struct sysinfo info {};
  return sysinfo(&info) == 0 ? static_cast<int64_t>(info.totalram) * info.mem_unit : 0;
}

int Cores() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

v1::Register MakeRegister(const NodeSetup& setup, const Inventory& inventory, const Agent& agent,
                          const ModelStore& models, const std::vector<std::string>& grader_roots,
                          const std::string& incarnation, const std::string& data_dir_id,
                          const ObeyedGeneration& generation, const Clock& clock) {
  v1::Register message;
  message.set_time_us(UnixMicros(clock.Wall()));
  generation.Tell(message);
  message.set_node(setup.node);
  message.set_incarnation(incarnation);
  message.set_data_dir_id(data_dir_id);
  message.set_version(kVersion);
  message.set_protocol(kProtocol);
  message.set_hostname(HostName());
  for (v1::Slot& slot : inventory.Slots()) *message.add_slots() = std::move(slot);
  for (v1::Model& model : agent.Models()) *message.add_models() = std::move(model);
  message.set_simulated(inventory.simulated());
  message.set_cpus(setup.cpus);
  message.set_memory_bytes(MemoryBytes());
  message.set_address(setup.address);
  message.set_has_shared_folder(setup.has_shared);
  message.set_rank_problem(agent.RankProblem());
  message.set_rank_build(agent.RankBuild());
  *message.mutable_disk() = MeasureDisk(setup);
  *message.mutable_facts() = MakeFacts(inventory.first_readings(), ListNetworks());
  *message.mutable_facts()->mutable_data_dir() = PlaceOf(setup.data_dir);
  message.mutable_facts()->set_place(setup.place);
  for (const auto& [name, value] : setup.network) {
    message.mutable_facts()->add_network_settings(name + "=" + value);
  }
  for (const std::string& root : grader_roots) {
    message.mutable_facts()->mutable_graders()->add_roots(root);
  }
  v1::HubFacts& hub = *message.mutable_facts()->mutable_hub();
  if (models.Downloads()) hub.set_endpoint(models.setup().endpoint);
  hub.set_cache_limit_bytes(models.setup().cache_limit);
  return message;
}

absl::Status PrepareFolders(const NodeSetup& setup) {
  SFT_RETURN_IF_ERROR(CheckDataDirFor(setup));
  SFT_RETURN_IF_ERROR(PrepareDataDir(setup));
  return setup.rank_user ? CheckSharedFor(setup) : absl::OkStatus();
}

// Each asks the other: which models are in use, and which on their way.
void Introduce(ModelStore& models, Agent& agent, const NodeSetup& setup) {
  if (models.Downloads()) {
    spdlog::info("models are downloaded from {} to {}", models.setup().endpoint,
                 models.setup().cache_dir);
  }
  models.SetInUse([&] { return agent.ModelsInUse(); });
  agent.SetDownloads([&] { return models.List(); });
  models.SetOnChange([&] { agent.SetModels(ListModels(setup)); });
}

void SayWhomRanksRunAs(const NodeSetup& setup, const Options& options) {
  if (setup.rank_user) {
    spdlog::info("ranks run as user {}", setup.rank_user->Describe());
    const auto look = [&](const char* what, const std::string& dir) {
      const RankRights rights(setup.rank_user);
      const absl::Status read = TryRead(dir);
      if (!read.ok()) spdlog::warn("{} {}: ranks cannot use it: {}", what, dir, Message(read));
    };
    for (const std::string& dir : setup.model_dirs) look("--models", dir);
    for (const std::string& dir : HubsHere(setup)) look("hub cache", dir);
  } else if (geteuid() == 0 && options.rank_user.empty()) {
    spdlog::warn("{}: {}", kRanksAreRoot, kMakeRankUser);
  }
}

// The folders whose programs jobs may grade answers with; none where they could not be confined.
std::vector<std::string> OfferedGraderRoots(const NodeSetup& setup, const std::string& program) {
  if (setup.grader_roots.empty()) return {};
  const absl::Status able = ProbeConfinement(program, setup.rank_user);
  if (able.ok()) return setup.grader_roots;
  spdlog::error(
      "--grader-root: no programs that grade answers are offered, for this node cannot confine "
      "them: {} (`sft-worker check` with the same options says what to allow)",
      Message(able));
  return {};
}

// Handles the signals that end the process. One thread receives them; all others, gRPC's included,
// have them blocked, so this is constructed before the first channel. Until Watch, a signal ends
// the process at once: joining may wait long.
class EndSignals {
 public:
  using OnSignal = std::function<void(int)>;

  // `is_lent`: who lends this node ends it with these signals, which go to every process on it.
  // They are this one's alone: shims and ranks ignore them, as they are asked for a checkpoint
  // first.
  explicit EndSignals(bool is_lent) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    if (is_lent) {
      for (const int number : {SIGUSR1, SIGUSR2}) sigaddset(&signals, number);
    }
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    if (is_lent) {
      for (const int number : {SIGTERM, SIGUSR1, SIGUSR2}) signal(number, SIG_IGN);
    }
    signal(SIGPIPE, SIG_IGN);
    std::thread([signals, state = state_] {
      while (true) {
        int number = 0;
        sigwait(&signals, &number);
        OnSignal on_signal;
        {
          const MutexLock lock(state->mutex);
          on_signal = state->on_signal;
        }
        on_signal(number);
      }
    }).detach();
  }
  // `on_signal` is called on the waiting thread, which lives as long as the process.
  void Watch(OnSignal on_signal) {
    const MutexLock lock(state_->mutex);
    state_->on_signal = std::move(on_signal);
  }

 private:
  struct State {
    Mutex mutex;
    OnSignal on_signal SFT_GUARDED_BY(mutex) = [](int) { _exit(0); };
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// `chosen`: the part of the machine's GPUs that this worker has; empty: all.
void SaySlots(const NodeSetup& setup, const Inventory& inventory, const std::string& chosen,
              int cpu_slots) {
  spdlog::info("node {}: {} GPU slots{}, {} CPU slots", setup.node, inventory.gpu_count(),
               inventory.simulated() ? " (simulated)"
               : chosen.empty()      ? ""
                                     : fmt::format(" ({})", chosen),
               cpu_slots);
}

absl::StatusOr<SimulatedGpus> SimulatedOf(const Options& options) {
  if (options.simulate_gpus.empty()) return SimulatedGpus();
  return ParseSimulatedGpus(options.simulate_gpus);
}

// Of the machine's GPUs; simulated ones are taken as they are.
absl::StatusOr<GpuSelection> SelectionOf(const Options& options) {
  if (!options.simulate_gpus.empty()) return GpuSelection();
  return GpuSelection::Open(options.gpus, GetEnv("CUDA_VISIBLE_DEVICES"));
}

}  // namespace

absl::Status RunWorker(const Options& options) {
  EndSignals signals(options.ephemeral);
  SFT_ASSIGN_OR_RETURN(const std::optional<v1::Lease> lease,
                       MakeLease(options, Clock::Real().Wall()));
  SFT_RETURN_IF_ERROR(rpc::ParseEndpoints(options.server).status());
  SFT_ASSIGN_OR_RETURN(const std::string program, OwnProgram());
  umask(kPrivateUmask);
  PassOnToo(options.rank_env);
  SFT_ASSIGN_OR_RETURN(const NodeSetup setup, MakeSetup(options, program));
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd lock, LockDataDir(setup.data_dir, Clock::Real()));
  SFT_RETURN_IF_ERROR(PrepareFolders(setup));
  SayWhomRanksRunAs(setup, options);
  const std::vector<std::string> grader_roots = OfferedGraderRoots(setup, program);
  Clock& clock = Clock::Real();
  SFT_ASSIGN_OR_RETURN(
      const std::unique_ptr<Identity> identity,
      Identity::Open({options.server, setup.data_dir, setup.node, options.join_token_file}, clock));
  SFT_ASSIGN_OR_RETURN(const SimulatedGpus simulated, SimulatedOf(options));
  SFT_ASSIGN_OR_RETURN(GpuSelection selection, SelectionOf(options));
  absl::Status selected;  // status of the first readings
  std::optional<int> machine_gpus;
  const auto probe = [&]() -> absl::StatusOr<std::vector<GpuReading>> {
    absl::StatusOr<std::vector<GpuReading>> readings = ProbeGpus(program);
    if (!readings.ok()) {
      spdlog::error("GPU probe: {}", Message(readings.status()));
      return readings;
    }
    if (!machine_gpus) machine_gpus = static_cast<int>(readings->size());
    absl::StatusOr<std::vector<GpuReading>> chosen = selection.Choose(*std::move(readings));
    selected = chosen.status();
    return chosen;
  };
  const int cpu_slots = options.cpu_slots >= 0 ? options.cpu_slots : options.dev ? Cores() : 0;
  Inventory inventory(probe, simulated, cpu_slots, clock);
  SFT_RETURN_IF_ERROR(selected);
  inventory.SetMachineGpus(machine_gpus.value_or(0));
  SaySlots(setup, inventory, selection.Text(), cpu_slots);
  const auto channels = [&] { return identity->Channel(); };
  const std::string incarnation = RandomUuid();
  const std::unique_ptr<ServerApi> server = MakeServerApi(channels, incarnation, setup.rank_user);
  SFT_ASSIGN_OR_RETURN(const std::unique_ptr<ModelStore> models,
                       OpenModelStore(options, setup, clock));
  Stager stager(setup, *server, models.get());
  PeerModels peers(setup, *server);
  models->SetPeers(&peers);
  RankCheck ranks([&] { return LocateTorch(setup.rank_binary, options.torch, setup.rank_user); });
  ShimProcesses shims(setup.shim_binary, setup.rank_user);
  Agent agent({}, setup, stager, inventory, *server, shims, clock,
              [&] { return ranks.LibraryPath(); });
  Introduce(*models, agent, setup);
  agent.SetRankProblem(ranks.Problem());
  // Starting a rank program takes seconds, so it is checked in a thread of its own.
  IoThread rank_check("rank-check", [&]() -> Nanos {
    const Nanos next = ranks.Look();
    agent.SetRankBuild(ranks.Build());  // before the word that ranks start
    agent.SetRankProblem(ranks.Problem());
    return next;
  });
  agent.SetModels(ListModels(setup));
  SFT_RETURN_IF_ERROR(agent.Load());
  FileSender files(setup, *server);
  ModelRequests requests(*models, agent);
  Asker asker(setup, *server);
  StepRecorder recorder(setup, *server, shims, clock);
  SFT_ASSIGN_OR_RETURN(const std::string data_dir_id, DataDirId(setup.data_dir));
  SFT_ASSIGN_OR_RETURN(const auto generation, ObeyedGeneration::Open(setup.data_dir));
  Departure departure(lease, options, agent);
  Session session(
      channels, agent,
      [&] {
        v1::Register message = MakeRegister(setup, inventory, agent, *models, grader_roots,
                                            incarnation, data_dir_id, *generation, clock);
        departure.AddTo(message);
        return message;
      },
      [&](const v1::FetchFile& request) { files.Send(request); },
      [&](const v1::ModelRequest& request) { requests.Take(request); },
      [&](const v1::Ask& ask) { asker.Ask(ask); },
      [&](const v1::Welcome& welcome) { return generation->Obey(welcome); },
      [&] { identity->Next(); }, [&] { departure.OnDismissed(); },
      [&](const v1::RecordSteps& request) { recorder.Record(request); });
  signals.Watch([&](int number) { departure.OnSignal(number); });
  IoThread model_scan("models", [&]() -> Nanos {
    agent.SetModels(ListModels(setup));
    return kModelScanInterval;
  });
  IoThread gpu_probe("gpu-probe", [&]() -> Nanos {
    inventory.Refresh();
    return kGpuProbeInterval;
  });
  IoThread certificate("certificate", [&]() -> Nanos {
    const absl::StatusOr<bool> renewed = identity->RenewIfDue();
    if (!renewed.ok()) spdlog::error("renewing the certificate: {}", Message(renewed.status()));
    if (renewed.ok() && *renewed) session.Redial();
    return kCertificateInterval;
  });
  IoThread data_cleaning("data-cleaning", [&]() -> Nanos {
    const absl::Status cleaned = stager.Clean([&] { return agent.InUse(); }, clock.Wall());
    if (!cleaned.ok()) spdlog::error("removing unused data: {}", Message(cleaned));
    return kDataCleaningInterval;
  });
  inventory.SetWaker([&] { gpu_probe.Wake(); });
  session.Start();
  obs::TellServiceManager("READY=1");
  while (!departure.Ended()) {
    agent.WaitForStep(agent.Step());
    departure.Look();
    obs::TellServiceManager("WATCHDOG=1");
  }
  obs::TellServiceManager("STOPPING=1");
  session.Stop();
  // The current work of a thread may take as long as a call's deadline, and everything important is
  // on disk at any time: a restart has to cope with a sudden end anyway.
  departure.SayEnd();
  spdlog::shutdown();
  _exit(0);
}

}  // namespace sft::worker
