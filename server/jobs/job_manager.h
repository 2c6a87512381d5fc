#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "server/core/change_hub.h"
#include "server/core/job_hooks.h"
#include "server/core/outlooks.h"
#include "server/jobs/hook_offers.h"
#include "server/jobs/job_fields.h"
#include "server/state/prices.h"
#include "server/store/job_lists.h"
#include "server/store/jobs.h"
#include "server/store/store.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {

// INVALID_ARGUMENT for an id of a request that is too long or not plain text.
absl::Status CheckRequestId(const std::string& id);
// What is wrong with a request whatever the job is.
absl::Status CheckResumeRequest(const v1::ResumeJobRequest& request);

// Jobs as their users see them. Thread-safe.
class JobManager {
 public:
  // `wake` asks for a reconcile tick soon.
  // `outlooks`, where it is given, tells what is expected of them; `hooks` makes the webhooks that
  // they name, of which there are none without it.
  JobManager(Store& store, Clock& clock, ChangeHub& hub, std::function<void()> wake,
             const Outlooks* outlooks = nullptr, JobHooks* hooks = nullptr)
      : store_(store),
        clock_(clock),
        hub_(hub),
        wake_(std::move(wake)),
        outlooks_(outlooks),
        hooks_(hooks) {}

  // Stores a checked job (job_intake.h) and queues it. A repeat of its request id returns the job
  // of the first call; ALREADY_EXISTS when that was another job. What the project's limits forbid
  // is refused (project_limits.h).
  absl::StatusOr<v1::Job> Submit(JobRecord job, const std::vector<JobFileRecord>& files,
                                 const Actor& actor = {});
  // As Submit for each, in transactions of at most kMaxTogether jobs. They come without their
  // job file, which they share, and are shown without it: a thousand copies would fill the memory.
  static constexpr size_t kMaxTogether = 50;
  absl::StatusOr<std::vector<v1::Job>> SubmitSweep(std::vector<JobRecord> jobs,
                                                   const std::vector<JobFileRecord>& files,
                                                   const std::string& source_text,
                                                   const Actor& actor = {});

  // A held job that waits is not placed until it is released. FAILED_PRECONDITION for one that does
  // not wait; with kPause one that has an attempt writes a checkpoint first and waits then.
  enum class Holding { kRelease, kHold, kPause };
  absl::StatusOr<v1::Job> Hold(const std::string& name, Holding holding, const std::string& reason,
                               const Actor& actor = {});

  // The job that the same request of the same caller has made within kSameRequest; absent: none.
  static constexpr std::chrono::minutes kSameRequest{10};
  absl::StatusOr<std::optional<v1::Job>> FindMade(const v1::SubmitJobRequest& request,
                                                  const Actor& actor);

  // Whether a job was stored under this request id.
  bool Knows(const std::string& project, const std::string& request_id);

  // What a job never changes, and most of what there is to read of it: for who asks again.
  struct Texts {
    std::string source, spec;
    std::vector<ResolvedRecord> values;
  };
  // `name` is a full name or an id here and below. NOT_FOUND.
  // `texts`: used where they are there, and read where not; null: read.
  absl::StatusOr<v1::Job> Get(const std::string& name, std::optional<Texts>* texts = nullptr);
  absl::StatusOr<JobState> StateOf(const std::string& name);

  struct Page {
    std::vector<v1::Job> jobs;            // without source text and resolved job
    std::optional<store::JobPlace> next;  // where the next page begins; absent: no more
    int total = 0;                        // where it was asked for
  };
  // The most jobs that a total counts.
  static constexpr int kMaxCounted = 10'000;
  // A job's place in the order of a list. NOT_FOUND for one that the list's caller does not see.
  absl::StatusOr<store::JobPlace> PlaceOf(const std::string& name, const store::JobFilter& filter);
  // `count` also asks for the total. What `fields` leaves out is not read.
  absl::StatusOr<Page> List(const store::JobFilter& filter, const JobFields& fields = {},
                            bool count = false);

  Clock& clock() const { return clock_; }

  // Returns at once, with the job CANCELLING or CANCELLED; an ended job is returned as it is.
  // With `checkpoint` its ranks write one before they end.
  absl::StatusOr<v1::Job> Cancel(const std::string& name, const std::string& reason,
                                 bool checkpoint, const Actor& actor = {});

  // A new job that goes on from a checkpoint of an ended one (JobService.ResumeJob), with the
  // values of `resolved` (job_intake.h) where that is given.
  absl::StatusOr<v1::Job> Resume(const v1::ResumeJobRequest& request, const Actor& actor,
                                 const JobRecord* resolved = nullptr);

  // Events with a sequence above `after`.
  absl::StatusOr<std::vector<v1::JobEvent>> Events(const std::string& name, int64_t after,
                                                   int limit);

 private:
  // `shared_text` is the job file of all; null: each has its own, and shows it.
  absl::StatusOr<std::vector<v1::Job>> SubmitAll(std::vector<JobRecord> jobs,
                                                 const std::vector<JobFileRecord>& files,
                                                 const std::string* shared_text,
                                                 const Actor& actor);
  // Stores them, but those that their request ids have stored already: `views` gets these.
  absl::Status InsertAll(std::vector<JobRecord>& jobs, const std::vector<store::JobTexts>& texts,
                         const std::vector<JobFileRecord>& files, const std::string* shared_text,
                         const Actor& actor, std::vector<v1::Job>& views);
  // The row with what other tables know of it, of which what `fields` leaves out is not read.
  absl::StatusOr<v1::Job> View(Database& db, const JobRecord& job, const PriceList& prices,
                               std::string spec_text = "", bool with_lost = false,
                               const JobFields& fields = {}) const;
  // With its schedule, of a job that was just stored all there is.
  v1::Job ViewOfNew(const JobRecord& job, const ScheduleRecord& schedule,
                    std::string spec_text) const;
  absl::StatusOr<v1::Job> ViewOf(Database& db, const JobRef& name,
                                 std::optional<Texts>* texts = nullptr) const;
  // The job that its request id has stored already, if there is one.
  absl::StatusOr<std::optional<JobRecord>> FindFirst(Database& db, const JobRecord& job) const;
  absl::StatusOr<JobRecord> InsertResumed(Database& db, const v1::ResumeJobRequest& request,
                                          const JobRef& ref, const std::string& owner,
                                          const JobRecord* resolved,
                                          const std::string& offered_hook);
  // What the resumed job may need, as HookOffers::MakeFor.
  absl::StatusOr<std::string> OfferHook(const JobRef& ref, const std::string& owner,
                                        const JobRecord* resolved, HookOffers& offers);

  Store& store_;
  Clock& clock_;
  ChangeHub& hub_;
  const std::function<void()> wake_;
  const Outlooks* const outlooks_;
  JobHooks* const hooks_;
};

}  // namespace sft::server
