#pragma once

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/attempt/attempt_context.h"
#include "worker/attempt/attempt_control.h"
#include "worker/attempt/attempt_io.h"
#include "worker/attempt/attempt_record.h"
#include "worker/attempt/shared_record.h"
#include "worker/shipping/checkpoint_shipper.h"

namespace sft::worker {

// One attempt on this node, from its dispatch to the acknowledgement of all it made; decide.h lists
// its states.
//
// Three threads drive it. Control() never waits for the network: it starts, watches and stops the
// shim. Io() does what may take long: staging, shipping of logs and events, the artifact.
// CheckpointIo() may take longest and must keep neither waiting: it uploads checkpoints.
// Everything else may be called from any thread. A new object over an old folder continues where
// the last one was.
class Attempt {
 public:
  Attempt(AttemptRecord record, const AttemptServices& services);

  const std::string& uid() const { return context_.uid; }
  const std::string& job_id() const { return context_.job_id; }
  int64_t resume_step() const { return resume_step_; }  // that it goes on from; 0: none
  // Nothing below it is written or registered any more.
  int64_t settled_step() const;
  int64_t epoch() const { return context_.epoch; }
  // The model that its job names; empty where this worker cannot read the job.
  std::string Model() const { return context_.job.ok() ? context_.job->job.model : ""; }

  // Whether its ranks ask judges what they think of answers.
  bool AsksJudges() const;

  // What the server wants of it.
  void Direct(const v1::DesiredAttempt& desired);
  // Nobody takes what it has to say: it stops and needs no acknowledgement. What `lasts`, no call
  // of this worker being taken any more, leaves all of it on disk for the worker's next life.
  void Abandon(const std::string& reason, bool lasts = false);
  v1::AttemptStatus Status() const;
  // The hashes of its data sets.
  std::vector<std::string> Blobs() const;
  // Nobody wants anything of it any more: its folder may go.
  bool Forgettable() const;
  // Not DONE, and processes may run: Control has something to look at soon.
  bool HasProcesses() const { return worker::HasProcesses(shared_.state()); }

  // Main thread. `heard`: the last moment at which the server surely heard of this worker (zero:
  // not in this life of it), from which the fencing limit counts.
  void Control(MonoTime heard) { control_.Turn(heard); }
  // Io thread: one piece of work; the time until there may be more.
  Nanos Io() { return io_.Work(); }
  // Checkpoint thread: as Io.
  Nanos CheckpointIo() { return checkpoints_.Work(); }
  // From another thread: Io() shall return soon; the object is about to go.
  void Interrupt();

 private:
  CheckpointShipper::Hooks CheckpointHooks();
  // Finds the checkpoints that an earlier life of the worker did not register.
  void FindCheckpoints(int first_rank);
  void OnCheckpointRegistered(int64_t step);

  const int64_t resume_step_;
  const AttemptContext context_;
  SharedRecord shared_;
  CheckpointShipper checkpoints_;
  AttemptControl control_;
  AttemptIo io_;
};

}  // namespace sft::worker
