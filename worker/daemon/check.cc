#include "worker/daemon/check.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <memory>

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/env.h"
#include "common/base/version.h"
#include "common/io/file.h"
#include "common/obs/check_report.h"
#include "common/rpc/channel.h"
#include "common/rpc/endpoint.h"
#include "common/rpc/status.h"
#include "common/rpc/version.h"
#include "common/tls/peer.h"
#include "sft/v1/cluster_service.grpc.pb.h"
#include "worker/base/child_environment.h"
#include "worker/base/child_process.h"
#include "worker/base/disk.h"
#include "worker/base/rank_user.h"
#include "worker/daemon/app.h"
#include "worker/daemon/check_ranks.h"
#include "worker/daemon/confinement_probe.h"
#include "worker/daemon/hub_options.h"
#include "worker/daemon/lease.h"
#include "worker/gpus/gpu_probe.h"
#include "worker/gpus/gpu_selection.h"
#include "worker/gpus/inventory.h"
#include "worker/node/identity.h"
#include "worker/node/models.h"
#include "worker/node/node_facts.h"
#include "worker/node/torch_locator.h"

namespace sft::worker {
namespace {

using obs::CheckReport;

constexpr std::chrono::seconds kProbeDeadline{20};
constexpr std::chrono::seconds kReachDeadline{5};
constexpr double kClockWarn = 2, kClockFail = 60;
constexpr int64_t kSharedMemory = int64_t{1} << 30;

void CheckFolders(const NodeSetup& setup, CheckReport& report) {
  report.Take("data folder", TryWrite(setup.data_dir), setup.data_dir,
              "let the user that sft-worker runs as write there, or give another --data-dir");
  const io::UniqueFd lock(open((setup.data_dir + "/worker.lock").c_str(), O_RDWR | O_CLOEXEC));
  const bool held = lock.valid() && flock(lock.get(), LOCK_EX | LOCK_NB) != 0;
  if (held) report.Ok("worker", "one runs with this data folder now");
  if (setup.has_shared) {
    report.Take("shared folder", CheckSharedFor(setup), setup.shared_dir,
                setup.rank_user ? "mount it, and let the user that ranks run as write there"
                                : "mount it, and let the user that sft-worker runs as write there");
  } else {
    report.Ok("shared folder",
              fmt::format("none (--shared): checkpoints above {} stay on this node, and "
                          "their jobs with them",
                          BytesText(setup.checkpoint_upload_limit)));
  }
}

// Checks which user ranks run as, and that this user can reach what it needs; the remaining checks
// use the same rights.
void CheckRanks(const Options& options, const NodeSetup& setup, CheckReport& report) {
  if (!setup.rank_user) {
    if (geteuid() == 0 && options.rank_user.empty()) {
      report.Warn("rank user", kRanksAreRoot, kMakeRankUser);
    } else {
      report.Ok("rank user", "ranks run as the user that sft-worker runs as");
    }
  } else {
    report.Take("rank user", CheckDataDirFor(setup),
                fmt::format("ranks run as {}", setup.rank_user->Describe()),
                "or choose another with --rank-user");
  }
}

// Checks the folders that jobs read from.
void CheckRoots(const Options& options, const NodeSetup& setup, CheckReport& report) {
  const std::vector<std::string> hubs = HubsHere(setup);
  const RankRights rights(setup.rank_user);
  const std::string who = setup.rank_user ? setup.rank_user->name : "the user that ranks run as";
  const auto look = [&](const char* name, const std::string& dir) {
    const absl::Status read = TryRead(dir);
    if (read.ok()) {
      report.Ok(name, dir);
    } else {
      report.Warn(name, std::string(Message(read)), fmt::format("let {} read it", who));
    }
  };
  for (const std::string& dir : setup.model_dirs) look("model folder", dir);
  for (const std::string& dir : hubs) look("hub cache", dir);
  for (const std::string& dir : options.data_roots) look("data root", dir);
  for (const std::string& dir : options.grader_roots) look("grader root", dir);
}

void CheckGraders(const NodeSetup& setup, const std::string& program, CheckReport& report) {
  if (setup.grader_roots.empty()) return;
  report.Take("graders", ProbeConfinement(program, setup.rank_user),
              "the kernel confines programs that grade answers",
              "they need Landlock and namespaces that users may make and mount in (sysctl "
              "user.max_user_namespaces, kernel.unprivileged_userns_clone, "
              "kernel.apparmor_restrict_unprivileged_userns; in a container its seccomp and "
              "AppArmor profiles); or start the worker without --grader-root");
}

// Checks the driver's device files, which ranks open themselves.
void CheckDevices(const NodeSetup& setup, CheckReport& report) {
  const RankRights rights(setup.rank_user);
  int opened = 0;
  std::vector<std::string> withheld;  // denied by a device cgroup
  for (const std::string& name : io::ListDir("/dev").value_or(std::vector<std::string>())) {
    const bool gpu = name.starts_with("nvidia") && name.size() > 6 &&
                     name.find_first_not_of("0123456789", 6) == std::string::npos;
    if (!gpu && name != "nvidiactl" && name != "nvidia-uvm") continue;
    const io::UniqueFd fd(open(("/dev/" + name).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    if (!fd.valid() && errno == EPERM) withheld.push_back("/dev/" + name);
    if (!fd.valid() && errno == EACCES) {
      report.Fail("GPU devices", fmt::format("ranks may not open /dev/{}", name),
                  "add the user to the group that owns it (`usermod --append --groups video`), and "
                  "start the worker again");
      return;
    }
    opened += fd.valid() ? 1 : 0;
  }
  if (!withheld.empty()) {
    report.Warn("GPU devices",
                fmt::format("the machine or container withholds {}", fmt::join(withheld, ", ")),
                "good where these are not this worker's GPUs; else give its container the devices");
  } else if (opened > 0) {
    report.Ok("GPU devices", fmt::format("ranks may open all {}", opened));
  }
}

void CheckDisk(const NodeSetup& setup, CheckReport& report) {
  const v1::NodeDisk disk = MeasureDisk(setup);
  const std::string text =
      fmt::format("{} of {} free", BytesText(disk.free_bytes()), BytesText(disk.total_bytes()));
  const char* advice = "free space below the data folder, or give it a larger disk";
  if (disk.level() == v1::NodeDisk::FULL) {
    report.Fail("disk", text + ": no job is placed on this node", advice);
  } else if (disk.level() == v1::NodeDisk::LOW) {
    report.Warn("disk", text, advice);
  } else {
    report.Ok("disk", text);
  }
}

void CheckMemory(CheckReport& report) {
  struct sysinfo info {};
  if (sysinfo(&info) == 0) {
    const auto total = static_cast<int64_t>(info.totalram) * info.mem_unit;
    report.Ok("memory", fmt::format("{}, {} CPUs", BytesText(total), get_nprocs()));
  }
  const absl::StatusOr<io::DiskSpace> shared = io::SpaceOf("/dev/shm");
  if (!shared.ok() || shared->free < kSharedMemory) {
    report.Warn("/dev/shm",
                shared.ok() ? fmt::format("{} free", BytesText(shared->free))
                            : std::string(Message(shared.status())),
                "ranks of one node talk through it (NCCL): mount a tmpfs of at least 1 GB there");
  }
}

// Checks the GPUs and prints what people look for: how many, their types and their state.
std::vector<GpuReading> CheckGpus(const Options& options, const std::string& program,
                                  CheckReport& report) {
  if (!options.simulate_gpus.empty()) {
    const absl::StatusOr<SimulatedGpus> simulated = ParseSimulatedGpus(options.simulate_gpus);
    report.Take("GPUs", simulated.status(),
                fmt::format("Number of GPUs: {} (simulated: ranks run on the CPU)",
                            simulated.ok() ? simulated->count : 0),
                "give TYPE:COUNT");
    return {};
  }
  const absl::StatusOr<std::vector<GpuReading>> gpus = ProbeGpus(program);
  if (!gpus.ok()) {
    report.Fail("GPUs", std::string(Message(gpus.status())),
                "see whether nvidia-smi answers; a driver that hangs needs a reset of the GPU or a "
                "restart of the node");
    return {};
  }
  absl::StatusOr<GpuSelection> selection =
      GpuSelection::Open(options.gpus, GetEnv("CUDA_VISIBLE_DEVICES"));
  if (!selection.ok()) {
    report.Fail("GPUs", std::string(Message(selection.status())), "see sft-worker --help");
    return {};
  }
  const std::string chosen = selection->Text();
  const size_t all = gpus->size();
  const absl::StatusOr<std::vector<GpuReading>> offered = selection->Choose(*gpus);
  if (!offered.ok()) {
    report.Fail("GPUs", std::string(Message(offered.status())), "name GPUs that nvidia-smi lists");
    return {};
  }
  const std::string count = chosen.empty() ? fmt::format("Number of GPUs: {}", all)
                                           : fmt::format("Number of GPUs: {}, offered: {} ({})",
                                                         all, offered->size(), chosen);
  if (offered->empty()) {
    const bool has_cpus = options.cpu_slots > 0 || options.dev;
    if (has_cpus) {
      report.Ok("GPUs", count + "; CPU slots are offered");
    } else {
      report.Fail("GPUs", count + (all == 0 ? ": there is no NVIDIA driver on this node" : ""),
                  all == 0 ? "install the driver, or offer CPU slots (--cpu-slots N)"
                           : "offer some of them, or CPU slots (--cpu-slots N)");
    }
    return {};
  }
  report.Ok("GPUs", count);
  for (size_t i = 0; i < offered->size(); ++i) {
    const GpuReading& gpu = (*offered)[i];
    const std::string text =
        fmt::format("{} ({}, {}), {} of {} used, {}% busy, {} NVLinks", gpu.name,
                    GpuTypeOf(gpu.name), gpu.pci, BytesText(gpu.memory_used_bytes),
                    BytesText(gpu.memory_bytes), gpu.utilization_percent, gpu.active_links);
    const std::string name = fmt::format("GPU {}", i);
    if (!gpu.error.empty()) {
      report.Fail(
          name, gpu.error,
          "it fell off the bus or waits for a reset: see dmesg (XID), then restart the node");
    } else if (gpu.recovery.empty()) {
      report.Ok(name, text);
    } else {
      report.Fail(name, text, "the driver asks to " + gpu.recovery + " before it is used");
    }
  }
  return *offered;
}

void CheckLinks(const std::vector<GpuReading>& gpus, CheckReport& report) {
  const v1::NodeFacts facts = MakeFacts(gpus, ListNetworks());
  if (!facts.driver_version().empty()) report.Ok("driver", facts.driver_version());
  if (facts.interconnect() == "PCIe") {
    report.Warn("interconnect", "PCIe: the GPUs have no NVLink",
                "everything runs; collectives of full fine-tuning are several times slower");
  } else if (!facts.interconnect().empty()) {
    report.Ok("interconnect", facts.interconnect());
  }
  for (const std::string& network : facts.networks()) {
    if (network.ends_with("ACTIVE")) {
      report.Ok("network", network);
    } else {
      report.Warn("network", network, "it carries nothing between nodes until it is active");
    }
  }
}

// The NCCL that ranks would open: wheels keep it beside torch's folder; a bundle may have a link to
// the folder of both.
std::string FindNccl(const std::string& torch_lib, const std::string& rank_dir) {
  const std::string lib = torch_lib.empty() ? rank_dir + "/../site-packages/torch/lib" : torch_lib;
  for (const char* place : {"/../../nvidia/nccl/lib/libnccl.so.2", "/libnccl.so.2"}) {
    if (io::Exists(lib + place)) return lib + place;
  }
  return "libnccl.so.2";
}

void CheckEngine(const Options& options, const NodeSetup& setup, const std::string& program,
                 bool has_gpus, CheckReport& report) {
  const absl::StatusOr<RankProgram> torch =
      LocateTorch(setup.rank_binary, options.torch, setup.rank_user);
  if (!torch.ok()) {
    report.Fail("torch", std::string(Message(torch.status())),
                "install what requirements/ of the bundle lists (pip install --no-deps -r ...), "
                "then give its folder with --torch");
    return;
  }
  const std::string torch_lib = torch->library_path.substr(0, torch->library_path.find(':'));
  report.Ok("torch", torch_lib.empty() ? "found by sft-rank itself" : torch_lib);
  report.Ok("ranks", fmt::format("sft-rank {} starts", torch->build));
  CheckMeeting(setup, torch->library_path, report);
  const std::string ranks = setup.rank_binary.substr(0, setup.rank_binary.rfind('/'));
  if (!has_gpus) return;
  const std::string plugin = ranks + "/../lib/libsft_cuda.so";
  if (io::Exists(plugin)) {
    report.Ok("CUDA plugin", plugin);
  } else {
    report.Fail("CUDA plugin", plugin + " is missing: ranks would train on CPUs",
                "install a bundle that was built with CUDA");
  }
  const absl::StatusOr<ChildResult> nccl =
      RunChild({program, "probe-nccl", FindNccl(torch_lib, ranks)}, {}, kProbeDeadline);
  if (nccl.ok() && nccl->ok()) {
    report.Ok("NCCL", nccl->output.substr(0, nccl->output.find('\n')));
  } else {
    report.Fail("NCCL",
                nccl.ok() ? nccl->output.substr(0, 300) : std::string(Message(nccl.status())),
                "it comes with torch's wheels (nvidia-nccl-cu13 in requirements/)");
  }
}

// Checks what a server tells a node that has not joined: with TLS only that it is reachable, and
// whether it is the one that the join token is for. False when the full check can follow.
bool CheckStranger(const Options& options, CheckReport& report) {
  const absl::StatusOr<std::vector<rpc::Endpoint>> endpoints = rpc::ParseEndpoints(options.server);
  if (!endpoints.ok()) {
    report.Fail("server", std::string(Message(endpoints.status())), "give --server HOST:PORT");
    return true;
  }
  // Of several the first that answers.
  auto endpoint = endpoints->begin();
  absl::Status shown = tls::FetchChain(endpoint->host, endpoint->port).status();
  while (absl::IsUnavailable(shown) && endpoint + 1 != endpoints->end()) {
    ++endpoint;
    shown = tls::FetchChain(endpoint->host, endpoint->port).status();
  }
  // A server without TLS is usable only on its own machine, where it answers the full check.
  if (absl::IsFailedPrecondition(shown) && rpc::IsLoopback(endpoint->host)) return false;
  if (!shown.ok()) {
    report.Fail("server", std::string(Message(shown)),
                "see that sft-server runs there and that no firewall is between (--server)");
    return true;
  }
  const std::string text = fmt::format("{}: answers with TLS", endpoint->ToString());
  const char* advice =
      "get a join token (`sftctl admin token create --join`) and give it with --join-token-file "
      "FILE, once";
  if (options.join_token_file.empty()) {
    report.Warn("server", text + "; this node has not joined yet", advice);
    return true;
  }
  const absl::StatusOr<std::string> authority = AuthorityOfToken(options.join_token_file);
  const absl::Status ours =
      authority.ok() ? tls::FetchAuthority(endpoint->host, endpoint->port, *authority).status()
                     : authority.status();
  report.Take("server", ours, text + "; this node joins when sft-worker starts with the token",
              advice);
  return true;
}

void CheckModels(const NodeSetup& setup, CheckReport& report) {
  const std::vector<v1::Model> models = ListModels(setup);
  if (models.empty()) {
    report.Warn("models", "none is seen", "put models below a folder named with --models");
  }
  for (const v1::Model& model : models) {
    const std::string text = fmt::format("{} at {}", model.id(), model.path());
    if (model.problem().empty()) {
      report.Ok("model", text);
    } else {
      report.Warn("model", fmt::format("{}: {}", text, model.problem()),
                  "jobs that name it are refused: repair or remove it");
    }
  }
}

void CheckAll(const Options& options, CheckReport& report) {
  const absl::StatusOr<std::string> program = OwnProgram();
  const absl::StatusOr<NodeSetup> setup =
      program.ok() ? MakeSetup(options, *program) : absl::StatusOr<NodeSetup>(program.status());
  absl::Status usable = setup.status();
  usable.Update(MakeLease(options, Clock::Real().Wall()).status());
  if (!usable.ok()) {
    report.Fail("options", std::string(Message(usable)), "see sft-worker --help");
    return;
  }
  report.Ok("sft-worker",
            fmt::format("{}, node {}, address {}", kVersion, setup->node, setup->address));
  CheckFolders(*setup, report);
  CheckRanks(options, *setup, report);
  CheckDisk(*setup, report);
  CheckMemory(report);
  CheckLimits(report);
  const std::vector<GpuReading> gpus = CheckGpus(options, *program, report);
  if (!gpus.empty()) CheckDevices(*setup, report);
  CheckLinks(gpus, report);
  CheckEngine(options, *setup, *program, !gpus.empty(), report);
  CheckRoots(options, *setup, report);
  CheckGraders(*setup, *program, report);
  CheckHub(options, report);
  CheckModels(*setup, report);
  CheckServer(options, *setup, report);
}

}  // namespace

void CheckServer(const Options& options, const NodeSetup& setup, CheckReport& report) {
  const bool joined = io::Exists(setup.data_dir + "/tls/node.crt");
  if (!joined && CheckStranger(options, report)) return;
  Clock& clock = Clock::Real();
  // Without the token: a check must not join.
  const absl::StatusOr<std::unique_ptr<Identity>> identity =
      Identity::Open({options.server, setup.data_dir, setup.node, ""}, clock);
  if (!identity.ok()) {
    report.Fail("server", std::string(Message(identity.status())),
                "the certificate of this node is in its data folder (--data-dir), below tls");
    return;
  }
  v1::GetServerInfoRequest request;
  request.set_client_version(kVersion);
  request.set_client_protocol(kProtocol);
  v1::ServerInfo info;
  grpc::Status status;
  int64_t before = 0, after = 0;
  // Of several addresses the first that answers.
  for (size_t i = 0; i < (*identity)->addresses(); ++i) {
    if (i > 0) (*identity)->Next();
    const auto stub = v1::ClusterService::NewStub((*identity)->Channel());
    grpc::ClientContext context;
    rpc::SetDeadline(context, kReachDeadline);
    before = UnixMicros(clock.Wall());
    status = stub->GetServerInfo(&context, request, &info);
    after = UnixMicros(clock.Wall());
    if (status.ok()) break;
  }
  if (!status.ok()) {
    report.Fail("server", fmt::format("{}: {}", options.server, status.error_message()),
                "see that sft-server runs there and that no firewall is between (--server)");
    return;
  }
  const absl::Status speaks =
      rpc::CheckServerProtocol(info.protocol(), info.min_protocol(), info.version());
  report.Take("server", speaks,
              fmt::format("{}: sft-server {}, answered in {:.1f} ms", (*identity)->Address(),
                          info.version(), static_cast<double>(after - before) / 1e3),
              "upgrade the older side: the server first");
  if (info.time_us() == 0) return;
  const double apart = (static_cast<double>(before) / 2 + static_cast<double>(after) / 2 -
                        static_cast<double>(info.time_us())) /
                       1e6;
  const std::string text = fmt::format("{:+.3f} s from the server's", apart);
  const char* advice = "let chrony or systemd-timesyncd keep the clocks of all nodes";
  if (std::abs(apart) >= kClockFail) {
    report.Fail("clock", text, advice);
  } else if (std::abs(apart) >= kClockWarn) {
    report.Warn("clock", text, advice);
  } else {
    report.Ok("clock", text);
  }
}

int RunCheck(const Options& options) {
  umask(kPrivateUmask);
  PassOnToo(options.rank_env);
  signal(SIGPIPE, SIG_IGN);  // a server may close the connection during the check
  CheckReport report;
  CheckAll(options, report);
  const std::string text = options.json ? report.Json() : report.Text();
  fputs(text.c_str(), stdout);
  return report.ExitCode();
}

int NcclProbeMain(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    printf("%s\n", dlerror());
    return 1;
  }
  const auto get = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (get == nullptr || get(&version) != 0) {
    printf("%s is no NCCL\n", path.c_str());
    return 1;
  }
  printf("%d.%d.%d at %s\n", version / 10000, version / 100 % 100, version % 100, path.c_str());
  return 0;
}

}  // namespace sft::worker
