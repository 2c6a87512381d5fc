#pragma once

#include <string>
#include <vector>

#include "common/spec/resolve.h"
#include "server/blob/blob_store.h"
#include "server/core/intake_limits.h"
#include "server/core/job_hooks.h"
#include "server/core/mail_rules.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/judges.h"
#include "server/resume/job_folders.h"
#include "server/scheduling/planning.h"
#include "server/store/store.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {

// What JobIntake::Prepare goes by beside the request.
struct PrepareOptions {
  // Jobs that are submitted at once, this one among them, for the project's limit.
  int together = 1;
  // The ended job that it goes on with, whose checkpoints it has to fit; null: none.
  const JobRecord* resumed = nullptr;
  // False: neither a model hub is asked nor the name of notify.webhook looked up, which may take
  // seconds, and a model that only the hub knows stays as it is.
  bool ask_hub = true;
};

// From a job file's text to a job: the server alone reads job files. Thread-safe.
class JobIntake {
 public:
  // Longest job file.
  static constexpr size_t kMaxSourceBytes = 1 << 20;

  // `limits` keeps jobs out where there is no room, `judges` those whose judges cannot be asked;
  // null: nothing does. `mail`: to whom they may have mail sent. `hooks` checks the addresses that
  // they name; null: none is.
  JobIntake(Store& store, BlobStore& blobs, JobManager& jobs, Planner& planner,
            IntakeLimits* limits = nullptr, Judges* judges = nullptr, MailRules mail = {},
            JobHooks* hooks = nullptr)
      : store_(store),
        blobs_(blobs),
        jobs_(jobs),
        planner_(planner),
        limits_(limits),
        judges_(judges),
        mail_(std::move(mail)),
        hooks_(hooks) {}

  // Problems are part of the answer. With for_submit also those that Submit has without its files,
  // and RESOURCE_EXHAUSTED as of Submit.
  absl::StatusOr<v1::ResolveJobResponse> Resolve(const v1::ResolveJobRequest& request,
                                                 const std::string& principal = "local");

  struct Outcome {
    // Not empty: the job file is refused, all problems at once, and nothing was stored.
    std::vector<spec::Problem> problems;
    v1::Job job;
    std::string file_name;  // that they are in; empty: the request's
    // Keys of files that are not uploaded; not empty: FAILED_PRECONDITION.
    std::vector<std::string> missing_files;
  };
  absl::StatusOr<Outcome> Submit(const v1::SubmitJobRequest& request, const Actor& actor);
  // As JobManager::Resume, where there is room. With overrides the values are checked as Submit
  // does.
  absl::StatusOr<Outcome> Resume(const v1::ResumeJobRequest& request, const Actor& actor);

  // All of Submit but storing: where the outcome holds no problem, the rows that it would store.
  struct Prepared {
    Outcome outcome;
    JobRecord job;
    std::vector<JobFileRecord> files;
  };
  absl::StatusOr<Prepared> Prepare(const v1::SubmitJobRequest& request,
                                   const std::string& principal,
                                   const PrepareOptions& options = {});

 private:
  using Overrides = google::protobuf::RepeatedPtrField<v1::Override>;
  // Resolves the text, and checks what only the server knows: types, variants, models.
  // `layout`, where it is not null, gets what was chosen.
  absl::StatusOr<spec::Resolution> Read(const std::string& text, const std::string& file_name,
                                        const Overrides& overrides, const FolderReader& reader,
                                        const PrepareOptions& options = {},
                                        Planner::LayoutChoice* layout = nullptr);
  // To whom the job may have its events told.
  void CheckNotify(bool ask_names, spec::Resolution& resolution);
  // That no path leads into the folder of another project's job.
  absl::Status CheckFolders(const FolderReader& reader, spec::Resolution& resolution);
  // A data set that the project has sent.
  absl::StatusOr<std::optional<DatasetRecord>> FindSent(const std::string& project,
                                                        const std::string& sha256);
  // What was found of the files that a job names.
  struct Files {
    std::vector<JobFileRecord> found;
    std::vector<std::string> missing;  // keys
    int64_t rows = 0;                  // of an epoch; 0: not known
    int protocol = 1;                  // least that a worker has to speak to read them
    std::vector<std::string> newer;    // keys of those that need it
  };
  // What the files' rows are known to be is checked too.
  absl::StatusOr<Files> CheckFiles(const v1::SubmitJobRequest& request,
                                   spec::Resolution& resolution);

  // What the project allows and the jobs it names are checked; RESOURCE_EXHAUSTED beyond its limit
  // of waiting jobs, but for a job that was taken in before: it is only told again.
  absl::Status CheckSchedule(const JobRecord& job, int together, spec::Resolution& resolution);
  // Whether the server has room for a job with these files; as CheckSchedule for a repeat.
  absl::Status CheckRoom(const JobRecord& job, const std::vector<JobFileRecord>& files);

  Store& store_;
  BlobStore& blobs_;
  JobManager& jobs_;
  Planner& planner_;
  IntakeLimits* const limits_;
  Judges* const judges_;
  const MailRules mail_;
  JobHooks* const hooks_;
};

}  // namespace sft::server
