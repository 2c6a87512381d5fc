#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/app/app.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "sft/v1/admin_service.grpc.pb.h"
#include "sft/v1/auth_service.grpc.pb.h"
#include "sft/v1/cluster_service.grpc.pb.h"
#include "sft/v1/data_service.grpc.pb.h"
#include "sft/v1/job_service.grpc.pb.h"
#include "sft/v1/scheduling_service.grpc.pb.h"
#include "sft/v1/web_service.grpc.pb.h"
#include "sft/v1/webhook_service.grpc.pb.h"

// A server in this process: remembers what it was asked and answers what a test puts into its
// public members. Tests change those only while no call is under way.

namespace sft::client {

class FakeServer {
 public:
  FakeServer();
  ~FakeServer();

  // ResolveJob, SubmitJob and SubmitSweep.
  v1::ResolveJobResponse resolution;
  std::vector<v1::ResolveJobRequest> resolved;
  std::vector<v1::SubmitJobRequest> submitted;
  std::vector<v1::SubmitSweepRequest> sweeps;
  // Calls of these and of DataService, in their order: "ResolveJob", "StatBlob".
  std::vector<std::string> calls;
  grpc::Status submit_status;
  // Heeds ResolveJobRequest.for_submit, which it answers with this.
  bool checks_for_submit = true;
  grpc::Status resolve_status;

  // Heeds ListJobsRequest.group and .states.
  bool knows_groups = true;
  // Heeds ListJobsRequest.count; the other fields of this age are remembered alone.
  bool counts_jobs = true;
  // Says that it has heeded ListJobsRequest.filter.
  bool knows_filters = true;
  std::vector<v1::ListJobsRequest> listed;
  // GetJob, ListJobs, CancelJob by id.
  std::map<std::string, v1::Job> jobs;

  // Listed; a CheckpointJob is answered with `asked` and adds those of `written`.
  std::vector<v1::Checkpoint> checkpoints, written;
  v1::CheckpointJobResponse asked;

  // Each Generate takes the next of these; the last one is repeated.
  struct Answer {
    std::vector<std::string> texts;
    grpc::Status status;
    std::string error;  // of the last piece
  };
  std::vector<Answer> answers;
  std::vector<v1::GenerateRequest> questions;
  // That many calls of CancelJob find no server.
  int cancels_lost = 0;

  // When jobs are listed; the answer is then kept back until the client ends the call.
  std::function<void()> on_list;

  // Each WatchJob takes the next of these; the last one is repeated.
  struct Watch {
    std::vector<v1::Job> jobs;
    grpc::Status status;
    bool until_cancelled = false;      // goes on until the client ends the call
    std::function<void()> on_written;  // once all jobs are written
  };
  std::vector<Watch> watches;

  // Each ReadLog takes the next of these: the whole log up to `end`, from the asked offset.
  struct Log {
    size_t end = 0;
    bool end_of_file = false;
    grpc::Status status;
  };
  std::string log;
  std::vector<Log> log_reads;
  // Instead of the above where it is not empty: the answers of one ReadLog.
  std::vector<v1::ReadLogResponse> log_answers;
  std::vector<v1::ReadLogRequest> log_requests;

  std::vector<v1::Metric> metrics;
  std::map<std::string, std::vector<v1::Metric>> metrics_of;  // of single jobs, by id
  std::vector<v1::ReadTensorBoardResponse> tensorboard;
  std::vector<v1::ProfileJobResponse> profile;
  grpc::Status profile_status;
  std::vector<v1::ProfileJobRequest> profile_requests;
  // Each ReadMetrics takes the next of these: points up to `end`; empty: all of them at once.
  struct MetricRead {
    size_t end = 0;
    grpc::Status status;
    bool until_cancelled = false;
    std::function<void()> on_written;
  };
  std::vector<MetricRead> metric_reads;
  std::vector<int64_t> metric_indexes;      // asked for
  v1::Curve curve;                          // GetCurve
  std::vector<v1::GetCurveRequest> curves;  // asked for
  std::vector<v1::JobEvent> events;         // listed two a page
  // Each ListClusterEvents or WatchClusterEvents takes the next of these; without any left it is
  // over.
  std::vector<v1::ListClusterEventsResponse> feed;
  std::vector<int64_t> feed_after;  // asked for; -1: from now on
  // Ends a WatchClusterEvents, once the above are written; UNIMPLEMENTED: is too old for events.
  grpc::Status feed_status;
  // ExplainWait; without one the server is too old for it.
  std::optional<v1::WaitExplanation> wait;
  v1::NodeHistory history;
  std::vector<v1::GetNodeHistoryRequest> histories;  // asked for
  std::vector<v1::Node> nodes;
  std::vector<v1::Variant> variants;
  std::vector<v1::NodeModel> models;
  std::map<std::string, std::string> tokenizer;  // its files, of whatever model
  v1::ServerInfo info;
  v1::Identity identity;
  v1::WebCode web_code;
  grpc::Status web_status;

  // DataService: content by hash; `cut_upload_after` breaks the next upload after so many bytes.
  std::map<std::string, std::string> blobs;
  int64_t cut_upload_after = -1;
  std::vector<int64_t> upload_offsets;
  // That many uploads are refused because another one of the blob is under way; then it is there.
  int uploads_of_others = 0;
  v1::Artifact artifact;
  std::map<std::string, std::string> artifact_files;  // by path, or by "JOB/path"

  // WebhookService: one webhook, and its deliveries, listed two a page; each list shows what is
  // waiting in it as delivered in the next one.
  v1::AddWebhookRequest webhook_request;
  v1::Webhook webhook;
  std::vector<v1::WebhookDelivery> deliveries;
  v1::ReplayWebhookRequest replay_request;

  std::vector<v1::BackupResponse> backup;
  std::vector<v1::BackupRequest> backup_requests;

  std::shared_ptr<grpc::Channel> Channel();

 private:
  class Jobs;
  class Data;
  class Cluster;
  class Admin;
  class Auth;
  class Web;
  class Scheduling;
  class Webhooks;

  std::unique_ptr<Jobs> jobs_service_;
  std::unique_ptr<Data> data_service_;
  std::unique_ptr<Cluster> cluster_service_;
  std::unique_ptr<Admin> admin_service_;
  std::unique_ptr<Auth> auth_service_;
  std::unique_ptr<Web> web_service_;
  std::unique_ptr<Scheduling> scheduling_service_;
  std::unique_ptr<Webhooks> webhook_service_;
  std::unique_ptr<grpc::Server> server_;
};

// One run of sftctl.
struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};
Outcome Sftctl(FakeServer& server, const std::vector<std::string>& arguments,
               bool terminal = false);

v1::Job MakeJob(const std::string& id, v1::Job::State state);
// A job that failed by the fault of `domain`.
v1::Job MakeFailed(const std::string& id, v1::Verdict::Domain domain);

// Writes a file into the test's own folder and gives its path.
std::string WriteTestFile(const std::string& name, const std::string& text);
std::string ReadTestFile(const std::string& path);
// An empty folder of this test.
std::string TestFolder();

}  // namespace sft::client
