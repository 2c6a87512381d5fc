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

  // As WorkerService.AskJudge, of a job of this id and project. Waits for the judge; UNAVAILABLE
  // while its job is not running, or after Stop.
  absl::StatusOr<v1::AskJudgeResponse> Ask(const std::string& job_id, const std::string& project,
                                           const v1::AskJudgeRequest& request);
  // Calls under way end soon, and no others begin.
  void Stop() { stopped_ = true; }

 private:
  bool Allowed(const std::string& url) const;
  absl::Status CheckOne(const std::string& project, const spec::Grader& grader);
  absl::StatusOr<spec::Grader> Find(const std::string& job_id, const std::string& name);
  absl::StatusOr<v1::AskJudgeResponse> AskJob(const std::string& project,
                                              const spec::Grader& grader,
                                              const std::string& prompt);
  absl::StatusOr<v1::AskJudgeResponse> AskUrl(const std::string& project,
                                              const spec::Grader& grader,
                                              const std::string& prompt);
  absl::StatusOr<std::shared_ptr<hub::HttpClient>> ClientFor(int timeout_seconds);

  const Options options_;
  Store& store_;
  Serving& serving_;
  const Secrets& secrets_;
  Clock& clock_;
  std::atomic<bool> stopped_ = false;
  Mutex mutex_;
  std::map<std::string, int> under_way_ SFT_GUARDED_BY(mutex_);  // by job
  int all_under_way_ SFT_GUARDED_BY(mutex_) = 0;
  // By the seconds that they wait.
  std::map<int, std::shared_ptr<hub::HttpClient>> clients_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
