#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/blob/log_store.h"
#include "server/blob/metric_log.h"
#include "server/blob/tensorboard.h"
#include "server/core/change_hub.h"
#include "server/gangs/node_refusals.h"
#include "server/gangs/note_limits.h"
#include "server/state/records.h"
#include "server/store/store.h"
#include "sft/v1/job_service.pb.h"
#include "sft/v1/worker_service.pb.h"

namespace sft::server {

// What ranks write, from the workers to the disk, and back to those who follow. Thread-safe.
class Ingest {
 public:
  // `refusals` counts what is left out; null: nothing does.
  Ingest(Store& store, Clock& clock, LogStore& logs, MetricLog& metrics, TensorBoard& tensorboard,
         ChangeHub& hub, NodeRefusals* refusals = nullptr)
      : store_(store),
        clock_(clock),
        logs_(logs),
        metrics_(metrics),
        tensorboard_(tensorboard),
        hub_(hub),
        refusals_(refusals),
        note_limits_(clock) {}

  // NOT_FOUND for an attempt the server does not know, FAILED_PRECONDITION for another epoch,
  // INVALID_ARGUMENT for what cannot be true of it (CheckLog, CheckEvents).
  absl::StatusOr<v1::AppendLogResponse> AppendLog(const v1::AppendLogRequest& request);
  // Metrics of rank 0 become the job's curve and progress, what any rank says of its own rows that
  // rank's; notes of any rank become job events.
  absl::StatusOr<v1::AppendEventsResponse> AppendEvents(const v1::AppendEventsRequest& request);

  // What a follower of a log needs to know. The stream is empty when the job has no such attempt
  // yet.
  struct LogPlace {
    std::string stream;
    int attempt = 0;
    int newest_attempt = 0;
    bool ended = false;      // all of it is there
    bool job_ended = false;  // no other attempt comes
    // What brings news: the job and, until its end, the log.
    std::vector<std::string> hub_keys;
  };
  absl::StatusOr<LogPlace> FindLog(const v1::ReadLogRequest& request);
  LogStore& logs() { return logs_; }
  MetricLog& metrics() { return metrics_; }

  // Up to `max` points of a job's curve from `index` on; without `all_attempts` those left out that
  // a later attempt has run again by now.
  struct CurvePart {
    std::vector<MetricPoint> points;
    int64_t next_index = 0;
  };
  absl::StatusOr<CurvePart> ReadCurve(const std::string& job_id, int64_t index, int max,
                                      bool all_attempts);
  // The job's TensorBoard files, brought up to date first.
  absl::StatusOr<std::vector<std::string>> TensorBoardFiles(const std::string& job_id);

 private:
  absl::Status TrimJobLogs(const std::string& attempt_uid);
  // What is taken of a message's events. One that cannot be true is left out: the node would send
  // it for ever, and nothing after it. Points are rank 0's alone: they are figures over all ranks.
  struct Believed {
    std::vector<MetricPoint> points;
    std::vector<RankPoint> of_rank;  // what any rank says of its own rows
    std::vector<const v1::RankEvent*> notes;
  };
  Believed BelievedOf(const v1::AppendEventsRequest& request, int attempt) const;
  // Notes become events of the job, as many as there may be.
  absl::Status StoreNotes(Database& db, const AttemptRecord& attempt, const std::string& node,
                          const std::vector<const v1::RankEvent*>& notes);
  absl::Status StorePoints(const std::string& job_id, int rank, const Believed& believed);
  // Whether points of the attempt were acknowledged that are not there any more.
  absl::StatusOr<bool> HasLostPoints(const AttemptRecord& attempt);
  // Takes the points of an event file's part that was acknowledged before, for points that were
  // lost since: the node keeps the file until it is told to forget the attempt. Answers where to go
  // on.
  absl::StatusOr<int64_t> TakeAgain(const AttemptRecord& attempt, int64_t acknowledged,
                                    const v1::AppendEventsRequest& request);
  // The entry of `again_`.
  std::optional<int64_t> AgainFrom(const std::string& attempt_uid);
  absl::Status TellOfLoss(const AttemptRecord& attempt, const std::string& text);

  Store& store_;
  Clock& clock_;
  LogStore& logs_;
  MetricLog& metrics_;
  TensorBoard& tensorboard_;
  ChangeHub& hub_;
  NodeRefusals* const refusals_;
  NoteLimits note_limits_;
  Mutex mutex_;
  // Attempts of which points were lost: the offset from which their node sends them again;
  // kGivenUp: it has sent all it has.
  static constexpr int64_t kGivenUp = -1;
  std::map<std::string, int64_t> again_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
