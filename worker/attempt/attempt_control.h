#pragma once

#include <map>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "worker/attempt/attempt_context.h"
#include "worker/attempt/decide.h"
#include "worker/attempt/gang_watch.h"
#include "worker/attempt/host_evidence.h"
#include "worker/attempt/shared_record.h"
#include "worker/channel/launch.h"
#include "worker/shipping/checkpoint_shipper.h"

namespace sft::worker {

// The main thread's part of an attempt: starts, watches and stops its shim, as DecideControl says.
// Never waits for the network. One thread.
class AttemptControl {
 public:
  // All are borrowed.
  AttemptControl(const AttemptContext& context, SharedRecord& shared,
                 const CheckpointShipper& checkpoints);

  // One turn. `heard`: the last moment at which the server surely heard of this worker (zero: not
  // in this life of it), from which the fencing limit counts.
  void Turn(MonoTime heard);

 private:
  ControlView View() const;
  // Carries the step out; the result that Note takes.
  absl::Status Do(const ControlStep& step, const ControlView& view);

  void Look();
  absl::StatusOr<channel::ShimStatus> ReadShimStatus();
  absl::StatusOr<channel::Answer> AskShim(const channel::Command& command) const;
  absl::Status Launch(const ControlView& view);
  absl::Status WriteLaunchFiles(const ControlView& view);
  // Makes what ranks write into; `delivers`: rank 0 is here, and its output folder shall be empty.
  absl::Status MakeRankFolders(const channel::RankLaunch& launch, bool delivers);
  absl::Status LinkAdapter(const std::map<std::string, std::string>& files,
                           const std::string& folder);
  // ALREADY_EXISTS: the shim was started before; UNKNOWN: it may have been, what it writes tells.
  absl::Status StartShim();
  // After a start that failed: leaves the status of an attempt that has ended, which every shim
  // that begins later takes for its own. ALREADY_EXISTS: one has begun.
  absl::Status KeepShimsOut() const;
  absl::Status Stop(const Wish& wish);
  absl::Status AskCheckpoint(int64_t wanted);
  void WatchRanks();
  void JudgeProcesses(AttemptEnd end);
  // Why the processes ended, by what shim and ranks left behind.
  v1::Verdict JudgeExit();
  std::vector<GpuMemory> LookAtMemory() const;
  HostEvidence LookAtHost(const AttemptRecord& record) const;
  void Conclude(const ControlStep& step, const Wish& wish);
  // What an export that was stopped or killed has left beside its result.
  void RemoveWork() const;

  const AttemptContext& context_;
  SharedRecord& shared_;
  const CheckpointShipper& checkpoints_;
  ControlMemory memory_;
  channel::ShimStatus shim_;  // at the last look
  GangWatch watch_;
  absl::Status start_;   // why the shim could not be started
  v1::Verdict verdict_;  // of the processes, once they are gone
};

}  // namespace sft::worker
