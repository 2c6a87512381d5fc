// The streams of JobService: each reads the truth, sends what is new, and sleeps until ChangeHub
// says that something has changed. A reader that does not read blocks its own stream only.

#include <fmt/format.h>

#include "common/io/file.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "server/core/convert.h"
#include "server/rpc/job_service.h"
#include "server/rpc/log_stream.h"
#include "server/rpc/principal.h"
#include "server/state/names.h"

namespace sft::server {
namespace {

// How long a stream sleeps before it looks whether its client is still there.
constexpr std::chrono::seconds kLook{1};
constexpr int kMetricsInMessage = 500;

bool IsOver(v1::Job::State state) { return IsTerminal(static_cast<JobState>(state)); }

grpc::Status Stopping() {
  return {grpc::StatusCode::UNAVAILABLE, "the server is stopping: ask again from where you are"};
}

}  // namespace

grpc::Status JobServiceImpl::WatchJob(grpc::ServerContext* context,
                                      const v1::WatchJobRequest* request,
                                      grpc::ServerWriter<v1::Job>* writer) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  const absl::StatusOr<JobRef> ref = ParseJobName(request->name());
  if (!ref.ok()) return rpc::ToGrpc(ref.status());
  auto subscription = hub_.Subscribe(ref->id);
  if (!subscription.ok()) return rpc::ToGrpc(subscription.status());
  std::string sent;
  while (!context->IsCancelled()) {
    if (const auto status = AdmitStill(*context); !status.ok()) return status;
    const absl::StatusOr<v1::Job> job = jobs_.Get(request->name());
    if (!job.ok()) return rpc::ToGrpc(job.status());
    // What is expected changes all the time: it is sent along with other news.
    v1::Job lasting = *job;
    lasting.clear_outlook();
    std::string bytes = lasting.SerializeAsString();
    if (bytes != sent && !writer->Write(*job)) break;
    sent = std::move(bytes);
    if (IsOver(job->state())) return grpc::Status::OK;
    if (!(*subscription)->Wait(kLook)) return Stopping();
  }
  return grpc::Status::CANCELLED;
}

grpc::Status JobServiceImpl::ReadMetrics(grpc::ServerContext* context,
                                         const v1::ReadMetricsRequest* request,
                                         grpc::ServerWriter<v1::ReadMetricsResponse>* writer) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  const absl::StatusOr<JobRef> ref = ParseJobName(request->name());
  if (!ref.ok()) return rpc::ToGrpc(ref.status());
  auto subscription = hub_.Subscribe(ref->id);
  if (!subscription.ok()) return rpc::ToGrpc(subscription.status());
  int64_t index = request->index();
  while (!context->IsCancelled()) {
    if (const auto status = AdmitStill(*context); !status.ok()) return status;
    // Asked before the points are read: a job that is over then has no later ones.
    const absl::StatusOr<v1::Job> job = jobs_.Get(request->name());
    if (!job.ok()) return rpc::ToGrpc(job.status());
    const auto part = ingest_.ReadCurve(ref->id, index, kMetricsInMessage, request->all_attempts());
    if (!part.ok()) return rpc::ToGrpc(part.status());
    if (part->next_index > index) {
      v1::ReadMetricsResponse response;
      for (const MetricPoint& point : part->points) *response.add_metrics() = ToProto(point);
      index = part->next_index;
      response.set_next_index(index);
      if (!writer->Write(response)) break;
      continue;
    }
    if (!request->follow() || IsOver(job->state())) return grpc::Status::OK;
    if (!(*subscription)->Wait(kLook)) return Stopping();
  }
  return grpc::Status::CANCELLED;
}

grpc::Status JobServiceImpl::ReadLog(grpc::ServerContext* context,
                                     const v1::ReadLogRequest* request,
                                     grpc::ServerWriter<v1::ReadLogResponse>* writer) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  LogStream stream(ingest_, hub_, *request);
  grpc::Status admitted;
  const absl::Status read =
      stream.Run([&](const v1::ReadLogResponse& response) { return writer->Write(response); },
                 [&] {
                   admitted = AdmitStill(*context);
                   return context->IsCancelled() || !admitted.ok();
                 });
  return admitted.ok() ? rpc::ToGrpc(read) : admitted;
}

grpc::Status JobServiceImpl::ReadTensorBoard(
    grpc::ServerContext* context, const v1::ReadTensorBoardRequest* request,
    grpc::ServerWriter<v1::ReadTensorBoardResponse>* writer) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  const absl::StatusOr<v1::Job> job = jobs_.Get(request->name());
  if (!job.ok()) return rpc::ToGrpc(job.status());
  const absl::StatusOr<JobRef> ref = ParseJobName(request->name());
  const auto files = ingest_.TensorBoardFiles(ref->id);
  if (!files.ok()) return rpc::ToGrpc(files.status());
  for (const std::string& path : *files) {
    const absl::StatusOr<io::UniqueFd> fd = io::OpenForRead(path);
    if (!fd.ok()) return rpc::ToGrpc(fd.status());
    v1::ReadTensorBoardResponse response;
    response.set_file(path.substr(path.rfind('/') + 1));
    std::string chunk(rpc::kChunkBytes, '\0');
    for (int64_t offset = 0;; offset += rpc::kChunkBytes) {
      const auto got = io::ReadAt(fd->get(), offset, chunk.data(), chunk.size(), path);
      if (!got.ok()) return rpc::ToGrpc(got.status());
      response.set_data(chunk.substr(0, *got));
      if (!writer->Write(response)) return grpc::Status::CANCELLED;
      if (*got < chunk.size()) break;
    }
  }
  return grpc::Status::OK;
}

}  // namespace sft::server
