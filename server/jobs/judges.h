#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/hub/http.h"
#include "common/spec/grader.h"
#include "common/spec/resolve.h"
#include "server/fleet/file_relay.h"
#include "server/jobs/secrets.h"
#include "server/jobs/serving.h"
#include "server/store/store.h"
#include "sft/v1/worker_service.pb.h"

namespace sft::server {

// Asks the language models that grade answers of jobs ([[evaluate.grader]] of type "judge"): a job
// of the same project that serves, or an OpenAI-compatible API that the operator allows, with a
// secret of the project. Thread-safe.
class Judges {
 public:
  struct Options {
    // Addresses that jobs may name, and those below them.
    std::vector<std::string> urls;
    // PEM file with the authorities that vouch for them; empty: the system's.
    std::string ca_file;
  };
  // Calls under way, of all jobs and of one; more are refused.
  static constexpr int kMostAtOnce = 64, kMostOfJob = 16;

  // The references are borrowed.
  Judges(Options options, Store& store, Serving& serving, const Secrets& secrets, Clock& clock)
      : options_(std::move(options)),
        store_(store),
        serving_(serving),
        secrets_(secrets),
        clock_(clock) {}

  // Adds what is wrong with the judges of a job of this project: a URL that is not allowed, a
  // secret or a job that is not there. An empty project is not known yet.
  absl::Status Check(const std::string& project, spec::Resolution& resolution);

  using Gone = FileRelay::Gone;
  // As WorkerService.AskJudge, of a job of this id and project. Waits for the judge, until `gone`
  // (null: never) says that nobody wants its answer: CANCELLED. UNAVAILABLE while its job is not
  // running, or after Stop; RESOURCE_EXHAUSTED while as many calls are under way as may be. A call
  // counts for max_calls where it ends OK, with a reply or the judge's error.
  absl::StatusOr<v1::AskJudgeResponse> Ask(const std::string& job_id, const std::string& project,
                                           const v1::AskJudgeRequest& request,
                                           const Gone& gone = nullptr);
  // Calls under way end soon, and no others begin.
  void Stop() { stopped_ = true; }

 private:
  // Calls under way. A call that nobody waits for any more keeps its place, and may outlive this.
  struct Places {
    Mutex mutex;
    std::map<std::string, int> by_job SFT_GUARDED_BY(mutex);  // of those that have some
    int all SFT_GUARDED_BY(mutex) = 0;
  };
  struct Place {
    std::shared_ptr<Places> places;
    std::string job_id;
    ~Place();
  };
  // A place that is free again when the last one has let go of what is returned.
  absl::StatusOr<std::shared_ptr<const void>> TakePlace(const std::string& job_id);
  bool Allowed(const std::string& url) const;
  absl::Status CheckOne(const std::string& project, const spec::Grader& grader);
  absl::StatusOr<spec::Grader> Find(const std::string& job_id, const std::string& name);
  absl::StatusOr<v1::AskJudgeResponse> AskJob(const std::string& project,
                                              const spec::Grader& grader, const std::string& prompt,
                                              const Gone& gone);
  absl::StatusOr<v1::AskJudgeResponse> AskUrl(const std::string& project,
                                              const spec::Grader& grader, const std::string& prompt,
                                              const Gone& gone, std::shared_ptr<const void> place);
  absl::StatusOr<std::shared_ptr<hub::HttpClient>> ClientFor(int timeout_seconds);

  const Options options_;
  Store& store_;
  Serving& serving_;
  const Secrets& secrets_;
  Clock& clock_;
  std::atomic<bool> stopped_ = false;
  const std::shared_ptr<Places> places_ = std::make_shared<Places>();
  Mutex mutex_;
  // By the seconds that they wait.
  std::map<int, std::shared_ptr<hub::HttpClient>> clients_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
