#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/io/file.h"
#include "common/io/sha256.h"
#include "common/rpc/channel.h"
#include "common/tls/peer.h"
#include "server/app/credentials.h"
#include "server/app/server.h"
#include "sft/v1/auth_service.grpc.pb.h"
#include "sft/v1/data_service.grpc.pb.h"
#include "sft/v1/job_service.grpc.pb.h"
#include "sft/v1/scheduling_service.grpc.pb.h"
#include "sft/v1/storage_service.grpc.pb.h"
#include "sft/v1/worker_service.grpc.pb.h"

namespace sft::server {

inline constexpr char kSecretRows[] = "{\"text\":\"a secret of alpha\"}\n";
inline constexpr char kSecretJob[] = R"([job]
model = "/models/tiny"
data = "rows.jsonl"
[compute]
gpu_type = "CPU"
gpu_count = 1
nodes = 1
gpus_per_node = 1
)";

// A server with TLS on loopback, as `sft-server init` and --require-token make it.
class SecureServerTest : public testing::Test {
 protected:
  // `http`: as Settings::http; not "off" with the web page, by these names.
  explicit SecureServerTest(const std::string& http = "off", std::vector<std::string> names = {})
      : dir_(io::MakeTempDir("secure-test").value()) {
    const std::string told = Initialise(dir_, {}, Clock::Real()).value();
    admin_token_ = Word(told, "admin token ");
    join_token_ = Word(told, "join token ");
    authority_ = io::ReadFile(dir_ + "/tls/ca.crt").value();
    Server::Settings settings;
    settings.data_dir = dir_;
    settings.listen = {"127.0.0.1", 0};
    settings.http = http;
    settings.web.web = http != "off";
    settings.web.names = std::move(names);
    settings.require_token = true;
    auto server = Server::Start(settings, Clock::Real());
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    admin_ = v1::AuthService::NewStub(With(admin_token_));
  }
  ~SecureServerTest() override {
    server_.reset();
    (void)io::RemoveAll(dir_);
  }

  static std::string Word(const std::string& text, const std::string& after) {
    const size_t at = text.find_first_not_of(' ', text.find(after) + after.size());
    return text.substr(at, text.find('\n', at) - at);
  }
  std::shared_ptr<grpc::Channel> With(const std::string& token) {
    return rpc::MakeChannel(server_->address(), {.authority_pem = authority_, .token = token});
  }
  std::string UserToken(const std::string& user, const std::string& project, v1::Role role,
                        int64_t lifetime = 0) {
    v1::PutUserRequest put;
    put.mutable_user()->set_name(user);
    if (!project.empty()) {
      put.mutable_user()->add_roles()->set_project(project);
      put.mutable_user()->mutable_roles(0)->set_role(role);
    }
    v1::User made;
    grpc::ClientContext context;
    EXPECT_TRUE(admin_->PutUser(&context, put, &made).ok());
    v1::CreateTokenRequest create;
    create.set_kind(v1::Token::USER);
    create.set_user(user);
    create.set_lifetime_seconds(lifetime);
    grpc::ClientContext second;
    EXPECT_TRUE(admin_->CreateToken(&second, create, &last_token_).ok());
    return last_token_.secret();
  }
  static grpc::Status Upload(const std::shared_ptr<grpc::Channel>& channel,
                             const std::string& content, const std::string& said_hash = "") {
    const auto stub = v1::DataService::NewStub(channel);
    grpc::ClientContext context;
    v1::UploadBlobResponse response;
    const auto writer = stub->UploadBlob(&context, &response);
    v1::UploadBlobRequest message;
    message.set_sha256(said_hash.empty() ? io::Sha256Hex(content) : said_hash);
    message.set_size(
        static_cast<int64_t>(said_hash.empty() ? content.size() : sizeof(kSecretRows) - 1));
    message.set_purpose(v1::UploadBlobRequest::DATASET);
    message.set_data(content);
    writer->Write(message);
    writer->WritesDone();
    return writer->Finish();
  }
  static grpc::Status Submit(const std::shared_ptr<grpc::Channel>& channel, v1::Job* job,
                             const std::string& request_id = "", const std::string& project = "",
                             bool dry_run = false) {
    const auto stub = v1::JobService::NewStub(channel);
    v1::SubmitJobRequest request;
    request.set_validate_only(dry_run);
    request.set_source_text(kSecretJob);
    request.set_file_name("job.toml");
    request.set_request_id(request_id);
    request.set_project(project);
    request.add_files()->set_key("job.data");
    request.mutable_files(0)->set_sha256(io::Sha256Hex(kSecretRows));
    grpc::ClientContext context;
    return stub->SubmitJob(&context, request, job);
  }
  // A job that is submitted with its data set, and what watches it.
  static v1::WatchJobRequest WatchOfNewJob(const std::shared_ptr<grpc::Channel>& channel,
                                           v1::Job* job) {
    EXPECT_TRUE(Upload(channel, kSecretRows).ok());
    EXPECT_TRUE(Submit(channel, job).ok());
    v1::WatchJobRequest watch;
    watch.set_name(job->name());
    return watch;
  }
  static v1::SubmitSweepResponse SubmitSweep(const std::shared_ptr<grpc::Channel>& channel) {
    v1::SubmitSweepRequest request;
    request.mutable_job()->set_source_text(kSecretJob);
    request.mutable_job()->set_file_name("job.toml");
    request.mutable_job()->set_request_id("sizes");
    request.mutable_job()->add_files()->set_key("job.data");
    request.mutable_job()->mutable_files(0)->set_sha256(io::Sha256Hex(kSecretRows));
    v1::SweepAxis* axis = request.add_axes();
    axis->set_key("hyperparameters.n_epochs");
    axis->add_values("1");
    axis->add_values("2");
    v1::SubmitSweepResponse response;
    grpc::ClientContext context;
    const grpc::Status status =
        v1::SchedulingService::NewStub(channel)->SubmitSweep(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  std::vector<v1::AuditRecord> Audit() {
    v1::ListAuditRecordsResponse page;
    v1::ListAuditRecordsRequest request;
    request.set_page_size(500);
    grpc::ClientContext context;
    EXPECT_TRUE(admin_->ListAuditRecords(&context, request, &page).ok());
    return {page.records().begin(), page.records().end()};
  }
  // Fields of requests that name what alpha has.
  std::map<std::string, std::string> NamesOf(const v1::Job& job) {
    return {
        {"name", job.name()},   {"project", "alpha"},        {"sha256", io::Sha256Hex(kSecretRows)},
        {"path", "x"},          {"source_text", kSecretJob}, {"file_name", "job.toml"},
        {"user", "ann"},        {"id", "nodes/none"},        {"node", "none"},
        {"attempt_uid", "none"}};
  }

  const std::string dir_;
  std::string admin_token_, join_token_, authority_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::AuthService::Stub> admin_;
  v1::CreateTokenResponse last_token_;
};

// A node that has joined.
class NodeTest : public SecureServerTest {
 protected:
  grpc::Status Join(const std::string& node, const std::string& key, const std::string& token,
                    std::string* certificate, int64_t clock_ahead_s = 0) {
    v1::JoinRequest request;
    request.set_node(node);
    request.set_certificate_request_pem(tls::MakeRequest(key, node).value());
    request.mutable_time()->set_seconds(UnixMicros(Clock::Real().Wall()) / 1'000'000 +
                                        clock_ahead_s);
    v1::JoinResponse response;
    grpc::ClientContext context;
    const grpc::Status status =
        v1::AuthService::NewStub(With(token))->Join(&context, request, &response);
    *certificate = response.certificate_pem();
    return status;
  }
  std::shared_ptr<grpc::Channel> As(const std::string& key, const std::string& certificate) {
    return rpc::MakeChannel(
        server_->address(),
        {.authority_pem = authority_, .key_pem = key, .certificate_pem = certificate});
  }
  const std::string key_ = tls::MakeKey().value(), other_key_ = tls::MakeKey().value();
  std::string certificate_;
};

}  // namespace sft::server
