// The streams of JobService: each of its followers reads the truth and sends what is new.

#include <fmt/format.h>

#include <optional>

#include "common/io/file.h"
#include "common/rpc/channel.h"
#include "server/core/convert.h"
#include "server/services/job_service.h"
#include "server/services/log_stream.h"
#include "server/state/names.h"

namespace sft::server {
namespace {

constexpr int kMetricsInMessage = 500;

// A job, sent when it has changed, until it is over.
class JobFollower final : public Follower {
 public:
  JobFollower(JobManager& jobs, std::string name, std::string id)
      : jobs_(jobs), name_(std::move(name)), id_(std::move(id)) {}

  absl::StatusOr<Next> Look(Exchange& exchange) override {
    SFT_ASSIGN_OR_RETURN(v1::Job job, jobs_.Get(name_, &texts_));
    // What is expected changes all the time: it is sent along with other news.
    v1::Outlook* const outlook = job.release_outlook();
    std::string bytes = job.SerializeAsString();
    job.set_allocated_outlook(outlook);
    if (bytes != sent_) exchange.Write(job);
    sent_ = std::move(bytes);
    return IsTerminal(static_cast<JobState>(job.state())) ? Next::kEnd : Next::kWait;
  }
  std::vector<std::string> keys() const override { return {id_}; }

 private:
  JobManager& jobs_;
  const std::string name_, id_;
  std::optional<JobManager::Texts> texts_;
  std::string sent_;  // its bytes, but for what is expected
};

// The points of a job's curve from an index on and, with `follow`, those that come until the job is
// over.
class CurveFollower final : public Follower {
 public:
  CurveFollower(JobManager& jobs, Ingest& ingest, v1::ReadMetricsRequest request, std::string id)
      : jobs_(jobs), ingest_(ingest), request_(std::move(request)), id_(std::move(id)) {}

  absl::StatusOr<Next> Look(Exchange& exchange) override {
    // Asked before the points are read: a job that is over then has no later ones.
    SFT_ASSIGN_OR_RETURN(const JobState state, jobs_.StateOf(request_.name()));
    SFT_ASSIGN_OR_RETURN(
        const auto part,
        ingest_.ReadCurve(id_, request_.index(), kMetricsInMessage, request_.all_attempts()));
    if (part.next_index > request_.index()) {
      v1::ReadMetricsResponse response;
      for (v1::Metric& metric : MetricsOf(part.points)) *response.add_metrics() = std::move(metric);
      request_.set_index(part.next_index);
      response.set_next_index(part.next_index);
      exchange.Write(response);
      return Next::kAgain;
    }
    return request_.follow() && !IsTerminal(state) ? Next::kWait : Next::kEnd;
  }
  std::vector<std::string> keys() const override {
    return request_.follow() ? std::vector{id_} : std::vector<std::string>();
  }

 private:
  JobManager& jobs_;
  Ingest& ingest_;
  v1::ReadMetricsRequest request_;  // its index moves on
  const std::string id_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Follower>> JobService::WatchJob(CallContext&,
                                                               const v1::WatchJobRequest& request) {
  SFT_ASSIGN_OR_RETURN(JobRef ref, ParseJobName(request.name()));
  return std::make_unique<JobFollower>(jobs_, request.name(), std::move(ref.id));
}

absl::StatusOr<std::unique_ptr<Follower>> JobService::ReadMetrics(
    CallContext&, const v1::ReadMetricsRequest& request) {
  SFT_ASSIGN_OR_RETURN(JobRef ref, ParseJobName(request.name()));
  return std::make_unique<CurveFollower>(jobs_, ingest_, request, std::move(ref.id));
}

absl::StatusOr<std::unique_ptr<Follower>> JobService::ReadLog(CallContext&,
                                                              const v1::ReadLogRequest& request) {
  return std::make_unique<LogStream>(ingest_, request);
}

absl::Status JobService::ReadTensorBoard(CallContext&, const v1::ReadTensorBoardRequest& request,
                                         Sink<v1::ReadTensorBoardResponse>& sink) {
  SFT_RETURN_IF_ERROR(jobs_.Get(request.name()).status());
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(request.name()));
  SFT_ASSIGN_OR_RETURN(const auto files, ingest_.TensorBoardFiles(ref.id));
  for (const std::string& path : files) {
    SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(path));
    v1::ReadTensorBoardResponse response;
    response.set_file(path.substr(path.rfind('/') + 1));
    std::string chunk(rpc::kChunkBytes, '\0');
    for (int64_t offset = 0;; offset += rpc::kChunkBytes) {
      SFT_ASSIGN_OR_RETURN(const size_t got,
                           io::ReadAt(fd.get(), offset, chunk.data(), chunk.size(), path));
      response.set_data(chunk.substr(0, got));
      if (!sink.Write(response)) return absl::CancelledError("the caller has gone");
      if (got < chunk.size()) break;
    }
  }
  return absl::OkStatus();
}

absl::Status JobService::Generate(CallContext&, const v1::GenerateRequest& request,
                                  Sink<v1::GenerateResponse>& sink) {
  return serving_.Ask(
      request, [&](const v1::GenerateResponse& piece) { return sink.Write(piece); },
      [&] { return sink.Gone(); });
}

absl::Status JobService::ProfileJob(CallContext&, const v1::ProfileJobRequest& request,
                                    Sink<v1::ProfileJobResponse>& sink) {
  return profiling_.Profile(
      request, [&](const v1::ProfileJobResponse& response) { return sink.Write(response); },
      [&] { return sink.Gone(); });
}

}  // namespace sft::server
