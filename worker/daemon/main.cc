#include <cstdio>
#include <string>

#include "common/obs/log.h"
#include "common/obs/open_file_limit.h"
#include "worker/channel/launch.h"
#include "worker/daemon/app.h"
#include "worker/daemon/check.h"
#include "worker/daemon/confinement_probe.h"
#include "worker/daemon/hub_options.h"
#include "worker/daemon/options.h"
#include "worker/gpus/gpu_probe.h"

int main(int argc, char** argv) {
  // Internal: the daemon runs itself this way to query the GPU driver, which may hang.
  if (argc == 2 && std::string(argv[1]) == "probe-gpus") return sft::worker::GpuProbeMain();
  if (argc == 3 && std::string(argv[1]) == "probe-nccl") return sft::worker::NcclProbeMain(argv[2]);
  if (argc == 2 && std::string(argv[1]) == "probe-confinement") {
    return sft::worker::ConfinementProbeMain();
  }
  const sft::worker::ParsedOptions parsed = sft::worker::ParseOptions(argc, argv);
  if (parsed.exit) return parsed.exit_code;
  if (parsed.options.check) return sft::worker::RunCheck(parsed.options);
  if (!parsed.options.pull.empty()) return sft::worker::RunPull(parsed.options);
  absl::Status status = sft::obs::InitLogging({"sft-worker", parsed.options.log_level});
  sft::obs::RaiseOpenFileLimit();
  if (status.ok()) status = sft::worker::RunWorker(parsed.options);
  if (status.ok()) return 0;
  fprintf(stderr, "sft-worker: %s\n", std::string(sft::Message(status)).c_str());
  return absl::IsInvalidArgument(status) ? sft::channel::kExitUsage : 1;
}
