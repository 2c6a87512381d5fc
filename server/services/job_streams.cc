// The streams of JobService: each reads the truth, sends what is new, and sleeps until ChangeHub
// says that something has changed. A reader that does not read blocks its own stream only.

#include <fmt/format.h>

#include "common/io/file.h"
#include "common/rpc/channel.h"
#include "server/core/convert.h"
#include "server/services/job_service.h"
#include "server/services/log_stream.h"
#include "server/state/names.h"

namespace sft::server {
namespace {

// How long a stream sleeps before it looks whether its client is still there.
constexpr std::chrono::seconds kLook{1};
constexpr int kMetricsInMessage = 500;

bool IsOver(v1::Job::State state) { return IsTerminal(static_cast<JobState>(state)); }

absl::Status Stopping() {
  return Unavailable("the server is stopping: ask again from where you are");
}

absl::Status IsGone() { return absl::CancelledError("the caller has gone"); }

}  // namespace

absl::Status JobService::WatchJob(CallContext& call, const v1::WatchJobRequest& request,
                                  Sink<v1::Job>& sink) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(request.name()));
  SFT_ASSIGN_OR_RETURN(const auto subscription, hub_.Subscribe(ref.id));
  std::string sent;
  while (!call.Gone()) {
    SFT_ASSIGN_OR_RETURN(const v1::Job job, jobs_.Get(request.name()));
    // What is expected changes all the time: it is sent along with other news.
    v1::Job lasting = job;
    lasting.clear_outlook();
    std::string bytes = lasting.SerializeAsString();
    if (bytes != sent && !sink.Write(job)) break;
    sent = std::move(bytes);
    if (IsOver(job.state())) return absl::OkStatus();
    if (!subscription->Wait(kLook)) return Stopping();
  }
  return IsGone();
}

absl::Status JobService::ReadMetrics(CallContext& call, const v1::ReadMetricsRequest& request,
                                     Sink<v1::ReadMetricsResponse>& sink) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(request.name()));
  SFT_ASSIGN_OR_RETURN(const auto subscription, hub_.Subscribe(ref.id));
  int64_t index = request.index();
  while (!call.Gone()) {
    // Asked before the points are read: a job that is over then has no later ones.
    SFT_ASSIGN_OR_RETURN(const v1::Job job, jobs_.Get(request.name()));
    SFT_ASSIGN_OR_RETURN(const auto part, ingest_.ReadCurve(ref.id, index, kMetricsInMessage,
                                                            request.all_attempts()));
    if (part.next_index > index) {
      v1::ReadMetricsResponse response;
      for (const MetricPoint& point : part.points) *response.add_metrics() = ToProto(point);
      index = part.next_index;
      response.set_next_index(index);
      if (!sink.Write(response)) break;
      continue;
    }
    if (!request.follow() || IsOver(job.state())) return absl::OkStatus();
    if (!subscription->Wait(kLook)) return Stopping();
  }
  return IsGone();
}

absl::Status JobService::ReadLog(CallContext& call, const v1::ReadLogRequest& request,
                                 Sink<v1::ReadLogResponse>& sink) {
  LogStream stream(ingest_, hub_, request);
  return stream.Run([&](const v1::ReadLogResponse& response) { return sink.Write(response); },
                    [&] { return call.Gone(); });
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
      if (!sink.Write(response)) return IsGone();
      if (got < chunk.size()) break;
    }
  }
  return absl::OkStatus();
}

}  // namespace sft::server
