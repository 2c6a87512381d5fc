#include "tests/unit/client/fake_server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "client/output/format.h"
#include "common/base/version.h"
#include "common/rpc/channel.h"

namespace sft::client {
namespace {

std::string IdOf(const std::string& name) { return ShortName(name); }

grpc::Status NoJob(const std::string& name) {
  return {grpc::StatusCode::NOT_FOUND, "no job is called " + name};
}

// The next of a list of answers; the last one is repeated.
template <typename T>
const T& Next(const std::vector<T>& answers, size_t& index) {
  return answers.at(std::min(index++, answers.size() - 1));
}

}  // namespace

class FakeServer::Jobs : public v1::JobService::Service {
 public:
  explicit Jobs(FakeServer& fake) : fake_(fake) {}

  grpc::Status ResolveJob(grpc::ServerContext*, const v1::ResolveJobRequest* request,
                          v1::ResolveJobResponse* response) override {
    fake_.calls.emplace_back("ResolveJob");
    fake_.resolved.push_back(*request);
    *response = fake_.resolution;
    if (!fake_.checks_for_submit || !request->for_submit()) return grpc::Status::OK;
    response->set_checked_for_submit(true);
    return fake_.resolve_status;
  }
  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                         v1::Job* response) override {
    fake_.calls.emplace_back("SubmitJob");
    fake_.submitted.push_back(*request);
    *response = MakeJob("job-new", v1::Job::PENDING);
    response->set_reason("waits for H100-4x");
    return fake_.submit_status;
  }
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::Job* response) override {
    const auto job = fake_.jobs.find(IdOf(request->name()));
    if (job == fake_.jobs.end()) return NoJob(request->name());
    *response = job->second;
    return grpc::Status::OK;
  }
  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    if (fake_.on_list) {
      fake_.on_list();
      while (!context->IsCancelled()) std::this_thread::yield();
    }
    fake_.listed.push_back(*request);
    // One job a page.
    size_t skip = request->page_token().empty() ? 0 : std::stoul(request->page_token());
    size_t index = 0;
    std::vector<v1::Job> jobs;
    for (const auto& [id, job] : fake_.jobs) {
      const auto& states = request->states();
      const bool asked = (states.empty() ||
                          std::find(states.begin(), states.end(), job.state()) != states.end()) &&
                         (request->group().empty() || job.group() == request->group());
      if (!fake_.knows_groups || asked) jobs.push_back(job);
    }
    if (fake_.counts_jobs && request->count()) {
      response->set_total(static_cast<int>(jobs.size()));
    }
    response->set_filtered(fake_.knows_filters && !request->filter().empty());
    for (const v1::Job& job : jobs) {
      if (index++ != skip) continue;
      *response->add_jobs() = job;
      if (index < jobs.size()) response->set_next_page_token(std::to_string(index));
    }
    return grpc::Status::OK;
  }
  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* request,
                         v1::Job* response) override {
    if (fake_.cancels_lost > 0 && --fake_.cancels_lost >= 0) {
      return {grpc::StatusCode::UNAVAILABLE, "the server restarts"};
    }
    const auto job = fake_.jobs.find(IdOf(request->name()));
    if (job == fake_.jobs.end()) return NoJob(request->name());
    job->second.set_state(v1::Job::CANCELLING);
    *response = job->second;
    return grpc::Status::OK;
  }
  grpc::Status ListCheckpoints(grpc::ServerContext*, const v1::ListCheckpointsRequest*,
                               v1::ListCheckpointsResponse* response) override {
    response->mutable_checkpoints()->Assign(fake_.checkpoints.begin(), fake_.checkpoints.end());
    return grpc::Status::OK;
  }
  grpc::Status CheckpointJob(grpc::ServerContext*, const v1::CheckpointJobRequest*,
                             v1::CheckpointJobResponse* response) override {
    *response = fake_.asked;
    fake_.checkpoints.insert(fake_.checkpoints.end(), fake_.written.begin(), fake_.written.end());
    return grpc::Status::OK;
  }
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::Job>* writer) override {
    if (fake_.watches.empty()) return NoJob(request->name());
    const Watch& watch = Next(fake_.watches, watch_index_);
    for (const v1::Job& job : watch.jobs) writer->Write(job);
    if (watch.on_written) watch.on_written();
    while (watch.until_cancelled && !context->IsCancelled()) std::this_thread::yield();
    return watch.status;
  }
  grpc::Status ListEvents(grpc::ServerContext*, const v1::ListEventsRequest* request,
                          v1::ListEventsResponse* response) override {
    size_t at = request->page_token().empty() ? 0 : std::stoul(request->page_token());
    for (int i = 0; i < 2 && at < fake_.events.size(); ++i, ++at) {
      *response->add_events() = fake_.events[at];
    }
    if (at < fake_.events.size()) response->set_next_page_token(std::to_string(at));
    return grpc::Status::OK;
  }
  grpc::Status ReadMetrics(grpc::ServerContext* context, const v1::ReadMetricsRequest* request,
                           grpc::ServerWriter<v1::ReadMetricsResponse>* writer) override {
    fake_.metric_indexes.push_back(request->index());
    const auto own = fake_.metrics_of.find(IdOf(request->name()));
    const auto& metrics = own == fake_.metrics_of.end() ? fake_.metrics : own->second;
    MetricRead read{.end = metrics.size()};
    if (!fake_.metric_reads.empty()) read = Next(fake_.metric_reads, metric_index_);
    v1::ReadMetricsResponse response;
    for (size_t i = request->index(); i < read.end; ++i) *response.add_metrics() = metrics[i];
    response.set_next_index(static_cast<int64_t>(read.end));
    if (response.metrics_size() > 0) writer->Write(response);
    if (read.on_written) read.on_written();
    while (read.until_cancelled && !context->IsCancelled()) std::this_thread::yield();
    return read.status;
  }
  grpc::Status GetCurve(grpc::ServerContext*, const v1::GetCurveRequest* request,
                        v1::Curve* response) override {
    fake_.curves.push_back(*request);
    *response = fake_.curve;
    return grpc::Status::OK;
  }
  grpc::Status ReadLog(grpc::ServerContext*, const v1::ReadLogRequest* request,
                       grpc::ServerWriter<v1::ReadLogResponse>* writer) override {
    fake_.log_requests.push_back(*request);
    for (const v1::ReadLogResponse& answer : fake_.log_answers) writer->Write(answer);
    if (!fake_.log_answers.empty()) return grpc::Status::OK;
    const Log& read = Next(fake_.log_reads, log_index_);
    v1::ReadLogResponse response;
    response.set_offset(request->offset());
    response.set_data(fake_.log.substr(request->offset(), read.end - request->offset()));
    response.set_end_of_file(read.end_of_file);
    response.set_attempt(1);
    writer->Write(response);
    return read.status;
  }
  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    fake_.questions.push_back(*request);
    const Answer& answer = Next(fake_.answers, answer_index_);
    v1::GenerateResponse piece;
    for (const std::string& text : answer.texts) {
      piece.set_text(text);
      writer->Write(piece);
    }
    piece.Clear();
    piece.set_finish_reason(answer.error.empty() ? "stop" : "error");
    piece.set_error(answer.error);
    if (answer.status.ok()) writer->Write(piece);
    return answer.status;
  }
  grpc::Status ReadTensorBoard(grpc::ServerContext*, const v1::ReadTensorBoardRequest*,
                               grpc::ServerWriter<v1::ReadTensorBoardResponse>* writer) override {
    // A client that gives up goes on with its test while this still writes.
    const std::vector<v1::ReadTensorBoardResponse> chunks = fake_.tensorboard;
    for (const v1::ReadTensorBoardResponse& chunk : chunks) writer->Write(chunk);
    return grpc::Status::OK;
  }
  grpc::Status ProfileJob(grpc::ServerContext*, const v1::ProfileJobRequest* request,
                          grpc::ServerWriter<v1::ProfileJobResponse>* writer) override {
    fake_.profile_requests.push_back(*request);
    const std::vector<v1::ProfileJobResponse> responses = fake_.profile;
    for (const v1::ProfileJobResponse& response : responses) writer->Write(response);
    return fake_.profile_status;
  }

 private:
  FakeServer& fake_;
  size_t watch_index_ = 0;
  size_t log_index_ = 0;
  size_t metric_index_ = 0;
  size_t answer_index_ = 0;
};

class FakeServer::Data : public v1::DataService::Service {
 public:
  explicit Data(FakeServer& fake) : fake_(fake) {}

  grpc::Status StatBlob(grpc::ServerContext*, const v1::StatBlobRequest* request,
                        v1::StatBlobResponse* response) override {
    fake_.calls.emplace_back("StatBlob");
    response->set_complete(fake_.blobs.contains(request->sha256()));
    response->set_received(static_cast<int64_t>(partial_[request->sha256()].size()));
    return grpc::Status::OK;
  }
  grpc::Status UploadBlob(grpc::ServerContext*, grpc::ServerReader<v1::UploadBlobRequest>* reader,
                          v1::UploadBlobResponse*) override {
    fake_.calls.emplace_back("UploadBlob");
    v1::UploadBlobRequest request;
    std::string hash;
    int64_t size = 0;
    while (reader->Read(&request)) {
      if (fake_.uploads_of_others > 0) {
        if (--fake_.uploads_of_others == 0) fake_.blobs[request.sha256()] = "theirs";
        return {grpc::StatusCode::ABORTED, "is being uploaded by another call"};
      }
      if (hash.empty()) {
        hash = request.sha256();
        size = request.size();
        fake_.upload_offsets.push_back(request.offset());
      }
      partial_[hash] += request.data();
      const auto received = static_cast<int64_t>(partial_[hash].size());
      if (fake_.cut_upload_after >= 0 && received >= fake_.cut_upload_after) {
        partial_[hash].resize(fake_.cut_upload_after);
        fake_.cut_upload_after = -1;
        return {grpc::StatusCode::UNAVAILABLE, "cut"};
      }
    }
    if (static_cast<int64_t>(partial_[hash].size()) != size) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "wrong size"};
    }
    fake_.blobs[hash] = partial_[hash];
    return grpc::Status::OK;
  }
  grpc::Status GetArtifact(grpc::ServerContext*, const v1::GetArtifactRequest* request,
                           v1::Artifact* response) override {
    if (fake_.artifact.name().empty()) return NoJob(request->name());
    *response = fake_.artifact;
    return grpc::Status::OK;
  }
  grpc::Status DownloadArtifactFile(grpc::ServerContext*,
                                    const v1::DownloadArtifactFileRequest* request,
                                    grpc::ServerWriter<v1::DownloadChunk>* writer) override {
    const auto of_job = fake_.artifact_files.find(request->name() + "/" + request->path());
    const std::string& content = of_job != fake_.artifact_files.end()
                                     ? of_job->second
                                     : fake_.artifact_files.at(request->path());
    v1::DownloadChunk chunk;
    chunk.set_offset(request->offset());
    chunk.set_data(content.substr(request->offset()));
    chunk.set_total_size(static_cast<int64_t>(content.size()));
    writer->Write(chunk);
    return grpc::Status::OK;
  }

 private:
  FakeServer& fake_;
  std::map<std::string, std::string> partial_;
};

class FakeServer::Cluster : public v1::ClusterService::Service {
 public:
  explicit Cluster(FakeServer& fake) : fake_(fake) {}

  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::ServerInfo* response) override {
    *response = fake_.info;
    return grpc::Status::OK;
  }
  grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest*,
                         v1::ListNodesResponse* response) override {
    response->mutable_nodes()->Assign(fake_.nodes.begin(), fake_.nodes.end());
    return grpc::Status::OK;
  }
  grpc::Status ListVariants(grpc::ServerContext*, const v1::ListVariantsRequest*,
                            v1::ListVariantsResponse* response) override {
    response->mutable_variants()->Assign(fake_.variants.begin(), fake_.variants.end());
    return grpc::Status::OK;
  }
  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse* response) override {
    response->mutable_models()->Assign(fake_.models.begin(), fake_.models.end());
    return grpc::Status::OK;
  }
  grpc::Status ReadTokenizer(grpc::ServerContext*, const v1::ReadTokenizerRequest* request,
                             grpc::ServerWriter<v1::ReadTokenizerResponse>* writer) override {
    for (const auto& [file, text] : fake_.tokenizer) {
      v1::ReadTokenizerResponse part;
      part.set_file(file);
      part.set_data(text);
      writer->Write(part);
    }
    if (!fake_.tokenizer.empty()) return grpc::Status::OK;
    return {grpc::StatusCode::NOT_FOUND, "no node has the model " + request->model()};
  }
  grpc::Status GetNodeHistory(grpc::ServerContext*, const v1::GetNodeHistoryRequest* request,
                              v1::NodeHistory* response) override {
    fake_.histories.push_back(*request);
    *response = fake_.history;
    return grpc::Status::OK;
  }
  grpc::Status ListClusterEvents(grpc::ServerContext*, const v1::ListClusterEventsRequest* request,
                                 v1::ListClusterEventsResponse* response) override {
    fake_.feed_after.push_back(request->after());
    *response = fake_.feed.at(feed_index_++);
    response->set_more(feed_index_ < fake_.feed.size());
    return grpc::Status::OK;
  }
  grpc::Status WatchClusterEvents(
      grpc::ServerContext*, const v1::WatchClusterEventsRequest* request,
      grpc::ServerWriter<v1::ListClusterEventsResponse>* writer) override {
    fake_.feed_after.push_back(request->has_after() ? request->after() : -1);
    if (feed_index_ < fake_.feed.size()) {
      // The connection breaks behind each.
      writer->Write(fake_.feed[feed_index_++]);
      return {grpc::StatusCode::UNAVAILABLE, "cut"};
    }
    return fake_.feed_status;
  }

 private:
  FakeServer& fake_;
  size_t feed_index_ = 0;
};

class FakeServer::Admin : public v1::AdminService::Service {
 public:
  explicit Admin(FakeServer& fake) : fake_(fake) {}

  grpc::Status Backup(grpc::ServerContext*, const v1::BackupRequest* request,
                      grpc::ServerWriter<v1::BackupResponse>* writer) override {
    fake_.backup_requests.push_back(*request);
    const std::vector<v1::BackupResponse> answers = fake_.backup;
    for (const v1::BackupResponse& answer : answers) writer->Write(answer);
    return grpc::Status::OK;
  }

 private:
  FakeServer& fake_;
};

class FakeServer::Auth : public v1::AuthService::Service {
 public:
  explicit Auth(FakeServer& fake) : fake_(fake) {}

  grpc::Status WhoAmI(grpc::ServerContext*, const v1::WhoAmIRequest*,
                      v1::Identity* response) override {
    *response = fake_.identity;
    return grpc::Status::OK;
  }

 private:
  FakeServer& fake_;
};

class FakeServer::Web : public v1::WebService::Service {
 public:
  explicit Web(FakeServer& fake) : fake_(fake) {}

  grpc::Status CreateCode(grpc::ServerContext*, const v1::CreateCodeRequest*,
                          v1::WebCode* response) override {
    *response = fake_.web_code;
    return fake_.web_status;
  }

 private:
  FakeServer& fake_;
};

class FakeServer::Scheduling : public v1::SchedulingService::Service {
 public:
  explicit Scheduling(FakeServer& fake) : fake_(fake) {}

  grpc::Status SubmitSweep(grpc::ServerContext*, const v1::SubmitSweepRequest* request,
                           v1::SubmitSweepResponse* response) override {
    fake_.sweeps.push_back(*request);
    response->set_sweep("sweep-new");
    return fake_.submit_status;
  }
  grpc::Status ExplainWait(grpc::ServerContext*, const v1::ExplainWaitRequest*,
                           v1::WaitExplanation* response) override {
    if (!fake_.wait.has_value()) return {grpc::StatusCode::UNIMPLEMENTED, ""};
    *response = *fake_.wait;
    return grpc::Status::OK;
  }

 private:
  FakeServer& fake_;
};

class FakeServer::Webhooks : public v1::WebhookService::Service {
 public:
  explicit Webhooks(FakeServer& fake) : fake_(fake) {}

  grpc::Status AddWebhook(grpc::ServerContext*, const v1::AddWebhookRequest* request,
                          v1::AddWebhookResponse* response) override {
    fake_.webhook_request = *request;
    *response->mutable_webhook() = fake_.webhook;
    if (request->format() != v1::Webhook::SLACK) response->set_secret("whsec_new");
    return grpc::Status::OK;
  }
  grpc::Status ListWebhooks(grpc::ServerContext*, const v1::ListWebhooksRequest*,
                            v1::ListWebhooksResponse* response) override {
    *response->add_webhooks() = fake_.webhook;
    return grpc::Status::OK;
  }
  grpc::Status ListWebhookDeliveries(grpc::ServerContext*,
                                     const v1::ListWebhookDeliveriesRequest* request,
                                     v1::ListWebhookDeliveriesResponse* response) override {
    const size_t begin = request->page_token().empty() ? 0 : std::stoul(request->page_token());
    const size_t end = std::min(
        {fake_.deliveries.size(), begin + 2, begin + static_cast<size_t>(request->page_size())});
    for (size_t i = begin; i < end; ++i) *response->add_deliveries() = fake_.deliveries[i];
    if (end < fake_.deliveries.size()) response->set_next_page_token(std::to_string(end));
    for (v1::WebhookDelivery& delivery : fake_.deliveries) {
      if (delivery.state() != v1::WebhookDelivery::WAITING) continue;
      delivery.set_state(v1::WebhookDelivery::DELIVERED);
      delivery.set_tries(1);
    }
    return grpc::Status::OK;
  }
  grpc::Status TestWebhook(grpc::ServerContext*, const v1::TestWebhookRequest*,
                           v1::WebhookDelivery* response) override {
    *response = fake_.deliveries.front();
    return grpc::Status::OK;
  }
  grpc::Status ReplayWebhook(grpc::ServerContext*, const v1::ReplayWebhookRequest* request,
                             v1::ReplayWebhookResponse* response) override {
    fake_.replay_request = *request;
    response->set_deliveries(3);
    return grpc::Status::OK;
  }

 private:
  FakeServer& fake_;
};

FakeServer::FakeServer()
    : jobs_service_(std::make_unique<Jobs>(*this)),
      data_service_(std::make_unique<Data>(*this)),
      cluster_service_(std::make_unique<Cluster>(*this)),
      admin_service_(std::make_unique<Admin>(*this)),
      auth_service_(std::make_unique<Auth>(*this)),
      web_service_(std::make_unique<Web>(*this)),
      scheduling_service_(std::make_unique<Scheduling>(*this)),
      webhook_service_(std::make_unique<Webhooks>(*this)) {
  info.set_version(kVersion);
  info.set_protocol(kProtocol);
  info.set_min_protocol(kProtocol);
  grpc::ServerBuilder builder;
  builder.RegisterService(jobs_service_.get());
  builder.RegisterService(data_service_.get());
  builder.RegisterService(cluster_service_.get());
  builder.RegisterService(admin_service_.get());
  builder.RegisterService(auth_service_.get());
  builder.RegisterService(web_service_.get());
  builder.RegisterService(scheduling_service_.get());
  builder.RegisterService(webhook_service_.get());
  server_ = builder.BuildAndStart();
}

FakeServer::~FakeServer() { server_->Shutdown(); }

std::shared_ptr<grpc::Channel> FakeServer::Channel() { return server_->InProcessChannel({}); }

Outcome Sftctl(FakeServer& server, const std::vector<std::string>& arguments, bool terminal) {
  std::vector<const char*> argv = {"sftctl"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out, err;
  FakeClock clock;
  const Console console{out, err, terminal, 80};
  const Connect connect = [&](const std::string&) {
    return std::make_unique<Connection>(server.Channel(), "test:1", console, clock);
  };
  Outcome run;
  run.code = RunApp(static_cast<int>(argv.size()), argv.data(), console, connect);
  run.out = out.str();
  run.err = err.str();
  return run;
}

v1::Job MakeJob(const std::string& id, v1::Job::State state) {
  v1::Job job;
  job.set_name("projects/default/jobs/" + id);
  job.set_state(state);
  job.mutable_verdict()->set_rank(-1);
  return job;
}

v1::Job MakeFailed(const std::string& id, v1::Verdict::Domain domain) {
  v1::Job job = MakeJob(id, v1::Job::FAILED);
  job.mutable_verdict()->set_domain(domain);
  job.mutable_verdict()->set_message("it broke");
  job.mutable_verdict()->set_advice("mend it");
  return job;
}

std::string TestFolder() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  std::string name = std::string(test->test_suite_name()) + "." + test->name();
  std::replace(name.begin(), name.end(), '/', '_');
  const std::string folder = testing::TempDir() + "sftctl." + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

std::string WriteTestFile(const std::string& name, const std::string& text) {
  const std::string path = TestFolder() + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string ReadTestFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace sft::client
