#pragma once

#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "worker/attempt/attempt_context.h"
#include "worker/attempt/decide.h"
#include "worker/attempt/shared_record.h"
#include "worker/channel/event.h"
#include "worker/shipping/checkpoint_shipper.h"
#include "worker/shipping/shipper.h"

namespace sft::worker {

// The io thread's part of an attempt: staging, shipping of logs and events, the artifact, as
// DecideIo says. One thread.
class AttemptIo {
 public:
  // All are borrowed.
  AttemptIo(const AttemptContext& context, SharedRecord& shared, CheckpointShipper& checkpoints);

  // One piece of work; the time until there may be more.
  Nanos Work();

 private:
  IoView View() const;
  // Carries the step out; the result that Note takes.
  absl::Status Do(const IoStep& step);
  // Brings here and checks what a dispatch needs.
  absl::Status Stage();
  // Tells in the job's status what is done now.
  void ShowPhase(const std::string& text);
  absl::Status FindTorch();
  absl::Status Ship(bool final);
  absl::Status Deliver();
  // Answers that this node's ranks wrote: those that are delivered, and those that rank 0's node
  // has.
  void RemoveAnswers();
  void DropSentAnswers();
  // Says what failed and is tried again, and when.
  void TellFailure(IoTask task);
  void ForgetFailure();
  // Leaves what could not be told to the server for too long out of the attempt's end.
  void LeaveOutUnshipped();
  void LoseArtifact(AttemptEnd end);
  void Conclude(AttemptEnd end);
  void OnEvent(int rank, const channel::Event& event);

  const AttemptContext& context_;
  SharedRecord& shared_;
  CheckpointShipper& checkpoints_;
  Shipper shipper_;
  IoMemory memory_;
};

}  // namespace sft::worker
