#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "server/blob/blob_store.h"
#include "server/blob/log_store.h"
#include "server/blob/metric_log.h"
#include "server/blob/tensorboard.h"
#include "server/core/change_hub.h"
#include "server/fleet/file_relay.h"
#include "server/fleet/worker_registry.h"
#include "server/gangs/ingest.h"
#include "server/jobs/job_manager.h"
#include "server/scheduling/reconciler.h"
#include "server/store/store.h"
#include "server/stored/artifacts.h"
#include "server/stored/checkpoints.h"
#include "tests/sim/disk.h"
#include "tests/sim/event_queue.h"

namespace sft::sim {

// A server process: the real core over a simulated disk, without rpc. Ends as by kill -9 or by a
// loss of power, and boots again on what is left.
class SimServer {
 public:
  // Logs, metrics and blobs are files below `dir`. All borrowed.
  SimServer(EventQueue& events, Chance& chance, Disk& disk, std::string dir);
  ~SimServer();

  // What a process has; its members are as in the server's own wiring.
  struct Process {
    Process(const std::string& dir, Clock& clock, std::function<void()> wake);

    std::unique_ptr<server::Store> store;
    std::unique_ptr<server::BlobStore> blobs, checkpoint_blobs;
    server::LogStore logs;
    server::MetricLog metrics;
    server::TensorBoard tensorboard;
    server::ChangeHub hub;
    server::WorkerRegistry registry;
    server::FileRelay relay;
    server::JobManager jobs;
    server::Ingest ingest;
    server::Artifacts artifacts;
    server::Checkpoints checkpoints;
    server::Reconciler reconciler;
  };
  // Null while it is down.
  Process* process() { return process_.get(); }
  // Which life of the server: what was sent to another is lost.
  int64_t life() const { return life_; }
  MachineClock& clock() { return clock_; }

  void Boot();
  void Kill();
  // `keep_none`: what was not synced is lost for certain.
  void LosePower(bool keep_none = false);
  // Stopped (SIGSTOP) or too busy: no ticks and no answers until Continue.
  void Pause() { paused_ = true; }
  void Continue() { paused_ = false; }
  // Streams of the logs that it has acknowledged to their end; while it is up.
  std::set<std::string> EndedLogs();
  bool answers() const { return process_ != nullptr && !paused_; }

 private:
  void TickAt(Nanos time);
  void CutLogs();

  EventQueue& events_;
  Chance& chance_;
  Disk& disk_;
  const std::string dir_;
  MachineClock clock_;
  std::unique_ptr<Process> process_;
  int64_t life_ = 0;
  bool tick_soon_ = false, paused_ = false, power_lost_ = false;
  Nanos swept_{0};
};

}  // namespace sft::sim
