#include "worker/attempt/host_evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

namespace sft::worker {
namespace {

using Process = channel::ShimStatus::Process;

constexpr size_t kMaxLines = 8;

const Process* Blamed(const channel::ShimStatus& status, const v1::Verdict& verdict) {
  for (const Process& process : status.processes) {
    if (process.name == verdict.process()) return &process;
  }
  return nullptr;
}

void Blame(const std::string& code, const std::string& what, const std::string& advice,
           v1::Verdict& verdict) {
  verdict.set_domain(v1::Verdict::INFRASTRUCTURE);
  verdict.set_code(code);
  verdict.set_message(fmt::format("{}; {}", verdict.message(), what));
  verdict.set_advice(advice);
}

// The worst XID of the attempt's GPUs is why its ranks ended.
bool ApplyXids(const HostEvidence& host, v1::Verdict& verdict) {
  std::optional<XidAction> worst;
  std::string text;
  size_t shown = 0;
  for (const KernelLine& line : host.kernel) {
    const std::optional<Xid> xid = ParseXid(line.message);
    if (!xid) continue;
    const auto gpu = host.gpus.find(xid->pci);
    // Where the addresses are known, a neighbour's fault is not ours.
    if (gpu == host.gpus.end() && !host.gpus.empty()) continue;
    if (shown++ < kMaxLines) verdict.add_evidence(line.message);
    const XidAction action = ActionOf(xid->number);
    if (action == XidAction::kIgnore) continue;
    // A reset or a restart of the node goes before what needs nothing but a new try.
    const auto weight = [](XidAction a) {
      return a == XidAction::kRebootNode ? 3 : a == XidAction::kResetGpu ? 2 : 1;
    };
    if (worst && weight(*worst) >= weight(action)) continue;
    worst = action;
    text = fmt::format("XID {} on {}: {}", xid->number,
                       gpu == host.gpus.end() ? "PCI " + xid->pci : gpu->second, xid->text);
  }
  if (worst) Blame("gpu_fault", text, AdviceFor(*worst, verdict.node()), verdict);
  return worst.has_value();
}

bool ApplyGpuProblems(const HostEvidence& host, v1::Verdict& verdict) {
  for (const auto& [gpu, problem] : host.gpu_problems) {
    verdict.add_evidence(fmt::format("{}: {}", gpu, problem));
  }
  if (host.gpu_problems.empty()) return false;
  const auto& [gpu, problem] = *host.gpu_problems.begin();
  Blame("gpu_lost", fmt::format("{}: {}", gpu, problem),
        fmt::format("look at nvidia-smi and dmesg on node {}; restart it if the GPU does not come "
                    "back",
                    verdict.node()),
        verdict);
  return true;
}

void ApplyMemory(const HostEvidence& host, const Process& blamed, v1::Verdict& verdict) {
  if (blamed.signal != SIGKILL) return;
  std::string how;
  for (const KernelLine& line : host.kernel) {
    const std::optional<OomKill> kill = ParseOomKill(line.message);
    if (!kill || kill->pid != blamed.pid) continue;
    verdict.add_evidence(line.message);
    how = kill->cgroup ? "the memory limit of its control group was reached"
                       : "the node's memory ran out";
  }
  if (how.empty() && host.oom_kills > 0) {
    how = fmt::format("memory of the worker's control group ran out ({} processes killed for it)",
                      host.oom_kills);
    verdict.add_evidence(fmt::format("memory.events: oom_kill grew by {}", host.oom_kills));
  }
  if (how.empty()) return;
  Blame("host_oom", how,
        fmt::format(
            "node {} needs more memory or less beside the job: fewer ranks on the node, "
            "offload_optimizer and offload_param = false, a smaller model; or raise the limit of "
            "sft-worker's control group",
            verdict.node()),
        verdict);
}

}  // namespace

void ApplyHostEvidence(const HostEvidence& host, const channel::ShimStatus& status,
                       v1::Verdict& verdict) {
  if (verdict.domain() != v1::Verdict::INFRASTRUCTURE && verdict.domain() != v1::Verdict::UNKNOWN) {
    return;
  }
  if (ApplyXids(host, verdict) || ApplyGpuProblems(host, verdict)) return;
  const Process* blamed = Blamed(status, verdict);
  if (blamed != nullptr) ApplyMemory(host, *blamed, verdict);
}

}  // namespace sft::worker
