#include "tests/sim/sim_user.h"

#include <fmt/format.h>

#include <utility>

#include "common/spec/job_spec.h"

namespace sft::sim {
namespace {

using std::chrono::seconds;

}  // namespace

SimUser::SimUser(EventQueue& events, Chance& chance, SimServer& server, Cluster& cluster,
                 Checker& checker, Options options, std::function<void(const std::string&)> note)
    : events_(events),
      chance_(chance),
      server_(server),
      cluster_(cluster),
      checker_(checker),
      options_(std::move(options)),
      note_(std::move(note)) {}

void SimUser::Start() {
  Every(seconds(1), seconds(24), &SimUser::SubmitNew);
  Every(seconds(8), seconds(60), &SimUser::Cancel);
  Every(seconds(5), seconds(50), &SimUser::AskForCheckpoint);
  Every(seconds(5), seconds(20), &SimUser::ResumeSome);
}

void SimUser::Every(Nanos least, Nanos most, void (SimUser::*what)()) {
  events_.After(chance_.Between(least, most), [this, least, most, what] {
    if (events_.now() > options_.until) return;
    (this->*what)();
    Every(least, most, what);
  });
}

server::JobRecord SimUser::MakeJob(const std::string& request) {
  server::JobRecord job;
  job.id = "job-of-" + request;
  job.project = "default";
  job.owner = "local";
  job.gpu_type = "H100";
  job.nodes = 1 + chance_.Below(3) / 2 + chance_.Below(4) / 3;
  job.gpus_per_node = 1 + chance_.Below(options_.gpus_per_node);
  job.model = options_.model;
  job.request_id = request;
  job.request_hash = "hash of " + request;
  spec::JobSpec spec;
  spec.job.model = job.model;
  spec.job.data = options_.data_file;
  spec.compute.gpu_type = job.gpu_type;
  spec.compute.nodes = job.nodes;
  spec.compute.gpus_per_node = job.gpus_per_node;
  spec.compute.gpu_count = job.nodes * job.gpus_per_node;
  spec.compute.unreachable_after = chance_.OneIn(2) ? "60s" : "15m";
  if (chance_.OneIn(4)) spec.compute.on_unreachable = spec::OnUnreachable::kWait;
  if (chance_.OneIn(6)) spec.compute.max_restarts = chance_.Below(3);
  job.spec = spec;
  Script& script = cluster_.scripts[job.id];
  script.lineage = job.id;
  script.steps = 4 + chance_.Below(24);
  script.step = std::chrono::milliseconds(500 + chance_.Below(3500));
  if (chance_.OneIn(5)) script.user_error_at = 1 + chance_.Below(static_cast<int>(script.steps));
  script.checkpoint_every = 2 + chance_.Below(9);
  return job;
}

void SimUser::SubmitNew() { Submit(fmt::format("r{}", ++requests_), 0); }

void SimUser::Submit(const std::string& request, int tries) {
  const auto again = [this, request, tries] {
    events_.After(seconds(2), [this, request, tries] { Submit(request, tries + 1); });
  };
  if (!server_.answers()) return again();
  if (!drafts_.contains(request)) drafts_[request] = MakeJob(request);
  const server::JobRecord& job = drafts_[request];
  const server::JobFileRecord file{"job.data", "", 0, "", options_.data_file};
  const absl::StatusOr<v1::Job> made = server_.process()->jobs.Submit(job, {file});
  if (!made.ok()) return again();
  // The answer may be lost after the commit.
  if (tries == 0 && chance_.OneIn(4)) return again();
  note_("submitted " + job.id);
  checker_.Acknowledged(request, job.id);
  jobs_.push_back(job.id);
}

void SimUser::Cancel() {
  if (jobs_.empty() || !server_.answers()) return;
  // The newest one may not run yet.
  const std::string& job = chance_.OneIn(3) ? jobs_.back() : chance_.Pick(jobs_);
  note_("cancel " + job);
  (void)server_.process()->jobs.Cancel(job, "the user's wish", chance_.OneIn(2));
}

// Refused unless the job runs.
void SimUser::AskForCheckpoint() {
  if (jobs_.empty() || !server_.answers()) return;
  v1::CheckpointJobRequest request;
  request.set_name(chance_.Pick(jobs_));
  request.set_request_id(fmt::format("r{}", ++requests_));
  // A lost answer is asked for again; the ranks write one all the same.
  for (int tries = chance_.OneIn(4) ? 2 : 1; tries > 0; --tries) {
    if (server_.process()->checkpoints.Ask(request).ok()) {
      note_("a checkpoint is asked of " + request.name());
    }
  }
}

// Refused unless the job has ended, without success, and left a checkpoint: others are tried then.
// Half of the requests name a step: that one alone will do.
void SimUser::ResumeSome() {
  constexpr int kTries = 6;
  for (int i = 0; i < kTries && !jobs_.empty() && server_.answers(); ++i) {
    v1::ResumeJobRequest request;
    request.set_name(chance_.Pick(jobs_));
    request.set_request_id(fmt::format("r{}", ++requests_));
    const auto listed = server_.process()->checkpoints.List(request.name());
    if (chance_.OneIn(2) && listed.ok() && listed->checkpoints_size() > 0) {
      request.set_step(listed->checkpoints(chance_.Below(listed->checkpoints_size())).step());
    }
    if (Resume(request, 0)) return;
  }
}

// False: it was refused.
bool SimUser::Resume(const v1::ResumeJobRequest& request, int tries) {
  if (!server_.answers()) return false;
  const absl::StatusOr<v1::Job> made = server_.process()->jobs.Resume(request, "local");
  if (!made.ok()) return false;
  const std::string id = made->name().substr(made->name().rfind('/') + 1);
  Script script = cluster_.scripts[request.name()];
  script.user_error_at = 0;  // what was wrong has been mended
  cluster_.scripts.emplace(id, script);
  if (tries == 0 && chance_.OneIn(4)) {
    events_.After(seconds(2), [this, request] { Resume(request, 1); });
    return true;
  }
  note_(fmt::format("{} goes on as {}", request.name(), id));
  checker_.Acknowledged(request.request_id(), id);
  jobs_.push_back(id);
  return true;
}

}  // namespace sft::sim
