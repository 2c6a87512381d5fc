#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "worker/channel/flight_record.h"
#include "worker/channel/launch.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/dist/rendezvous.h"
#include "worker/engine/dist/traffic.h"
#include "worker/engine/train/trainer.h"
#include "worker/rank/command_input.h"
#include "worker/rank/device.h"
#include "worker/rank/event_log.h"
#include "worker/rank/launch_file.h"

namespace sft::rank {

// Everything that `sft-rank train` needs, its launch file included. Borrowed by the run.
struct TrainContext {
  const Launch& launch;
  int rank;  // global
  EventLog& events;
  CommandInput& commands;
  Clock& clock;
  MonoTime process_start;
  std::string profile;  // file for the trace of a step, gzip; empty: none
};

// One rank of a job, from rendezvous to artifact. Connections live as long as this object, not as
// the call of Run: taking down a group whose peers are gone can hang, so a failing process reports
// first and then ends without destroying it.
class TrainRun {
 public:
  explicit TrainRun(const TrainContext& context) : context_(context) {}

  // Returns kExitOk, or kExitStopped when a command or a signal ended the run. Throws engine
  // errors; once told to stop, what is caused by peers that ended first is no error.
  channel::ExitCode Run();

  // The most memory that this rank has had; 0 before it has a device.
  int64_t PeakMemory() const;

 private:
  channel::ExitCode RunToEnd();
  void OpenFlight();
  engine::TrainerOptions MakeOptions(double peak_flops) const;

  TrainContext context_;
  std::optional<Device> device_;
  std::optional<channel::FlightRecorder> flight_;
  std::optional<engine::TrafficMeter> traffic_;  // of more than one rank
  std::unique_ptr<engine::Rendezvous> rendezvous_;
  std::unique_ptr<engine::Communicator> comm_;
  std::unique_ptr<engine::TrainObserver> observer_;
  std::unique_ptr<engine::Trainer> trainer_;
};

}  // namespace sft::rank
