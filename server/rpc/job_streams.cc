// The streams of JobService: each reads the truth, sends what is new, and sleeps until ChangeHub
// says that something has changed. A reader that does not read blocks its own stream only.

#include <fmt/format.h>

#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "server/core/convert.h"
#include "server/rpc/job_service.h"
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
  if (const auto status = CheckPrincipal(*context); !status.ok()) return status;
  const absl::StatusOr<JobRef> ref = ParseJobName(request->name());
  if (!ref.ok()) return rpc::ToGrpc(ref.status());
  auto subscription = hub_.Subscribe(ref->id);
  if (!subscription.ok()) return rpc::ToGrpc(subscription.status());
  std::string sent;
  while (!context->IsCancelled()) {
    const absl::StatusOr<v1::Job> job = jobs_.Get(request->name());
    if (!job.ok()) return rpc::ToGrpc(job.status());
    std::string bytes = job->SerializeAsString();
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
  if (const auto status = CheckPrincipal(*context); !status.ok()) return status;
  const absl::StatusOr<JobRef> ref = ParseJobName(request->name());
  if (!ref.ok()) return rpc::ToGrpc(ref.status());
  auto subscription = hub_.Subscribe(ref->id);
  if (!subscription.ok()) return rpc::ToGrpc(subscription.status());
  int64_t index = request->index();
  while (!context->IsCancelled()) {
    // Asked before the points are read: a job that is over then has no later ones.
    const absl::StatusOr<v1::Job> job = jobs_.Get(request->name());
    if (!job.ok()) return rpc::ToGrpc(job.status());
    const auto points = ingest_.metrics().Read(ref->id, index, kMetricsInMessage);
    if (!points.ok()) return rpc::ToGrpc(points.status());
    if (!points->empty()) {
      v1::ReadMetricsResponse response;
      for (const MetricPoint& point : *points) *response.add_metrics() = ToProto(point);
      index += static_cast<int64_t>(points->size());
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
  if (const auto status = CheckPrincipal(*context); !status.ok()) return status;
  int64_t offset = request->offset();
  bool tail_wanted = request->has_tail_lines();
  std::unique_ptr<ChangeHub::Subscription> subscription;
  std::string key;
  while (!context->IsCancelled()) {
    const absl::StatusOr<Ingest::LogPlace> place = ingest_.FindLog(*request);
    if (!place.ok()) return rpc::ToGrpc(place.status());
    if (request->follow() && place->hub_key != key) {
      auto subscribed = hub_.Subscribe(place->hub_key);
      if (!subscribed.ok()) return rpc::ToGrpc(subscribed.status());
      subscription = *std::move(subscribed);
      key = place->hub_key;
      continue;
    }
    v1::ReadLogResponse response;
    response.set_attempt(place->attempt);
    if (!place->stream.empty()) {
      if (tail_wanted) {
        const auto start = ingest_.logs().TailOffset(place->stream, request->tail_lines());
        if (!start.ok()) return rpc::ToGrpc(start.status());
        offset = *start;
        tail_wanted = false;
      }
      auto bytes = ingest_.logs().Read(place->stream, offset, rpc::kChunkBytes);
      if (!bytes.ok()) return rpc::ToGrpc(bytes.status());
      response.set_data(*std::move(bytes));
    }
    response.set_offset(offset);
    const bool at_end = response.data().empty();
    response.set_end_of_file(at_end && place->ended);
    offset += static_cast<int64_t>(response.data().size());
    if ((!at_end || response.end_of_file()) && !writer->Write(response)) break;
    if (at_end && (place->ended || !request->follow())) return grpc::Status::OK;
    if (at_end && !subscription->Wait(kLook)) return Stopping();
  }
  return grpc::Status::CANCELLED;
}

}  // namespace sft::server
