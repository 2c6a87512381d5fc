#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "server/store/jobs.h"
#include "tests/sim/chance.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/invariants.h"
#include "tests/sim/machine.h"
#include "tests/sim/sim_server.h"

namespace sft::sim {

// Somebody who submits jobs, cancels them, asks for checkpoints and resumes what has ended, as
// clients do: again with the same request id until there is an answer.
class SimUser {
 public:
  struct Options {
    std::string model;
    std::string data_file;
    int gpus_per_node = 2;  // a job asks for that many at most
    Nanos until{0};         // nothing new after that
  };
  // All borrowed. `note` takes a line for the trace.
  SimUser(EventQueue& events, Chance& chance, SimServer& server, Cluster& cluster, Checker& checker,
          Options options, std::function<void(const std::string&)> note);

  // The first of each kind of request is on its way.
  void Start();
  // Acknowledged.
  const std::vector<std::string>& jobs() const { return jobs_; }

 private:
  // Again and again, each time after a while from `least` to `most`.
  void Every(Nanos least, Nanos most, void (SimUser::*what)());
  void SubmitNew();
  void Submit(const std::string& request, int tries);
  void Cancel();
  void AskForCheckpoint();
  void ResumeSome();
  bool Resume(const v1::ResumeJobRequest& request, int tries);
  server::JobRecord MakeJob(const std::string& request);

  EventQueue& events_;
  Chance& chance_;
  SimServer& server_;
  Cluster& cluster_;
  Checker& checker_;
  const Options options_;
  const std::function<void(const std::string&)> note_;
  std::vector<std::string> jobs_;
  std::map<std::string, server::JobRecord> drafts_;  // by request
  int requests_ = 0;
};

}  // namespace sft::sim
