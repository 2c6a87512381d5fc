// Who may call what: the table against the contract, and each rpc over TLS with every kind of wrong
// caller. In one file, as both are read against the one list of rpcs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <set>

#include "common/io/file.h"
#include "common/io/sha256.h"
#include "common/rpc/channel.h"
#include "common/tls/peer.h"
#include "server/app/check.h"
#include "server/app/credentials.h"
#include "server/calls/grpc_methods.h"
#include "sft/v1/cluster_service.grpc.pb.h"
#include "tests/e2e/every_rpc.h"
#include "tests/unit/server/rpc/raw_call.h"
#include "tests/unit/server/services/secure_server.h"

namespace sft::server {
namespace {

using grpc::StatusCode;
using sft::testing_support::CallEveryRpc;
using sft::testing_support::Outcome;
using testing::HasSubstr;

TEST_F(SecureServerTest, TheTableHasEachMethodOfTheContractAndNoOther) {
  std::set<std::string> table;
  for (const auto& [name, method] : server_->methods().all()) table.insert(PathOf(name));
  const std::vector<std::string> all = sft::testing_support::EveryRpc();
  EXPECT_EQ(table, std::set<std::string>(all.begin(), all.end()));
}

TEST_F(SecureServerTest, WhatChangesSomethingIsRecordedAndNeedsMoreThanLooking) {
  for (const auto& [name, method] : server_->methods().all()) {
    if (method.rule.audit == Audit::kChange && method.rule.caller == Caller::kUser) {
      EXPECT_GE(method.rule.role, Role::kSubmitter) << name;
    }
  }
}

TEST_F(SecureServerTest, WithoutTlsNoCallSucceeds) {
  for (const Outcome& call : CallEveryRpc(rpc::MakeChannel(server_->address()), {})) {
    EXPECT_EQ(call.code, StatusCode::UNAVAILABLE) << call.method << ": " << call.message;
  }
}

// Whether a method is there for who has no token yet.
bool IsForAnybody(const Server& server, const std::string& path) {
  return server.methods().Find(MethodOf(path))->rule.caller == Caller::kAnybody;
}

TEST_F(SecureServerTest, WithoutAGoodTokenNoCallSucceeds) {
  const std::string revoked = UserToken("ann", "alpha", v1::SUBMITTER);
  v1::RevokeTokenRequest revoke;
  revoke.set_id(last_token_.token().id());
  v1::Token ended;
  grpc::ClientContext context;
  ASSERT_TRUE(admin_->RevokeToken(&context, revoke, &ended).ok());
  std::string forged = admin_token_;
  forged.back() = forged.back() == 'a' ? 'b' : 'a';
  for (const std::string& token : {std::string(), std::string("sft_none_none"), forged, revoked}) {
    for (const Outcome& call : CallEveryRpc(With(token), {})) {
      const bool options = call.method == "/sft.v1.AuthService/GetLoginOptions";
      EXPECT_EQ(call.code, options                               ? StatusCode::OK
                           : IsForAnybody(*server_, call.method) ? StatusCode::FAILED_PRECONDITION
                                                                 : StatusCode::UNAUTHENTICATED)
          << token << call.method << call.message;
      EXPECT_EQ(call.answers, "") << call.method;
      EXPECT_THAT(call.message, testing::Not(HasSubstr("sft_")));
    }
  }
}

TEST_F(SecureServerTest, HealthAndReflectionAskForATokenToo) {
  const auto channel = With("");
  for (const char* method :
       {"/grpc.health.v1.Health/Check",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "/no.such/Method"}) {
    const grpc::Status status = CallRaw(channel, method, grpc::ByteBuffer());
    EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << method;
  }
}

TEST_F(SecureServerTest, AUserWithoutARoleMayOnlyAskWhoHeIs) {
  for (const Outcome& call : CallEveryRpc(With(UserToken("eve", "", v1::VIEWER)), {})) {
    if (IsForAnybody(*server_, call.method)) continue;
    const bool harmless = call.method == "/sft.v1.AuthService/WhoAmI" ||
                          call.method == "/sft.v1.ClusterService/GetServerInfo";
    EXPECT_EQ(call.code, harmless ? StatusCode::OK : StatusCode::PERMISSION_DENIED)
        << call.method << ": " << call.message;
  }
}

TEST_F(SecureServerTest, AJoinTokenJoinsAndDoesNothingElse) {
  for (const Outcome& call : CallEveryRpc(With(join_token_), {{"node", "a"}})) {
    if (IsForAnybody(*server_, call.method)) continue;
    const bool join = call.method == "/sft.v1.AuthService/Join";
    EXPECT_EQ(call.code, join ? StatusCode::INVALID_ARGUMENT : StatusCode::PERMISSION_DENIED)
        << call.method << ": " << call.message;
  }
}

TEST_F(SecureServerTest, AViewerSeesAndChangesNothing) {
  const auto ann = With(UserToken("ann", "alpha", v1::SUBMITTER));
  ASSERT_TRUE(Upload(ann, kSecretRows).ok());
  v1::Job job;
  ASSERT_TRUE(Submit(ann, &job).ok());
  const auto viewer = With(UserToken("vic", "alpha", v1::VIEWER));
  for (const Outcome& call : CallEveryRpc(viewer, NamesOf(job))) {
    if (IsForAnybody(*server_, call.method)) continue;
    const Rule& rule = server_->methods().Find(MethodOf(call.method))->rule;
    if (rule.audit == Audit::kChange || rule.role > Role::kViewer || rule.caller == Caller::kNode) {
      EXPECT_EQ(call.code, StatusCode::PERMISSION_DENIED) << call.method << ": " << call.message;
    } else if (call.method == "/sft.v1.JobService/GetJob") {
      EXPECT_EQ(call.code, StatusCode::OK) << call.message;
    }
  }
  v1::Job now;
  v1::GetJobRequest get;
  get.set_name(job.name());
  grpc::ClientContext context;
  ASSERT_TRUE(v1::JobService::NewStub(ann)->GetJob(&context, get, &now).ok());
  EXPECT_EQ(now.state(), v1::Job::PENDING);
}

TEST_F(SecureServerTest, WhoLacksARoleIsToldTheCommandThatKeepsTheOthers) {
  const auto ann = With(UserToken("ann", "alpha", v1::VIEWER));
  v1::Job job;
  EXPECT_EQ(Submit(ann, &job, "", "beta").error_message(),
            "ann has no role in project beta: an admin gives one with `sftctl admin user set ann "
            "--project alpha=viewer --project beta=submitter`");
  EXPECT_EQ(Submit(ann, &job).error_message(),
            "ann is viewer in any project, and this needs submitter: an admin gives it with "
            "`sftctl admin user set ann --project alpha=submitter`");
  const std::string token = UserToken("bob", "alpha", v1::SUBMITTER);
  v1::ResolveJobRequest resolve;
  resolve.set_source_text(kSecretJob);
  resolve.set_file_name("job.toml");
  resolve.set_project("beta");
  const auto resolved = [&] {
    v1::ResolveJobResponse response;
    grpc::ClientContext context;
    return v1::JobService::NewStub(With(token))
        ->ResolveJob(&context, resolve, &response)
        .error_message();
  };
  EXPECT_EQ(resolved(), "") << "for no project";
  resolve.set_for_submit(true);
  EXPECT_EQ(resolved(),
            "bob has no role in project beta: an admin gives one with `sftctl admin user set bob "
            "--project alpha=submitter --project beta=submitter`");
  resolve.clear_project();
  EXPECT_EQ(resolved(), "") << "for the one that there is";
  EXPECT_EQ(Submit(ann, &job, "", "alpha").error_message(),
            "ann is viewer in project alpha, and this needs submitter: an admin gives it with "
            "`sftctl admin user set ann --project alpha=submitter`");
}

TEST_F(SecureServerTest, WhatAnotherProjectHasIsNotThere) {
  const auto ann = With(UserToken("ann", "alpha", v1::SUBMITTER));
  ASSERT_TRUE(Upload(ann, kSecretRows).ok());
  v1::Job job;
  ASSERT_TRUE(Submit(ann, &job).ok());
  EXPECT_EQ(job.name().rfind("projects/alpha/jobs/", 0), 0u) << job.name();
  const std::string id = job.name().substr(job.name().rfind('/') + 1);
  const auto bob = With(UserToken("bob", "beta", v1::SUBMITTER));
  std::map<std::string, std::string> names = NamesOf(job);
  names["sweep"] = SubmitSweep(ann).sweep();
  for (const std::string& name : {job.name(), id, "projects/beta/jobs/" + id}) {
    names["name"] = name;
    for (const Outcome& call : CallEveryRpc(bob, names)) {
      EXPECT_EQ(call.answers.find(id), std::string::npos) << call.method;
      EXPECT_EQ(call.answers.find("secret of alpha"), std::string::npos) << call.method;
      const Rule& rule = server_->methods().Find(MethodOf(call.method))->rule;
      if (rule.place == Place::kNamed) {
        EXPECT_EQ(call.code, StatusCode::NOT_FOUND) << call.method << ": " << call.message;
        // As of a job that is nowhere.
        EXPECT_EQ(call.message, "no job \"" + id + "\": `sftctl list` shows them") << call.method;
      } else if (call.method == "/sft.v1.SchedulingService/CancelSweep") {
        EXPECT_EQ(call.code, StatusCode::NOT_FOUND) << call.message;
      } else if (IsForAnybody(*server_, call.method)) {
        continue;
      } else if (rule.audit == Audit::kChange || rule.place == Place::kProject) {
        EXPECT_EQ(call.code, StatusCode::PERMISSION_DENIED) << call.method << ": " << call.message;
      }
    }
  }
  names["project"] = "";
  names["name"] = "";
  for (const Outcome& call : CallEveryRpc(bob, names)) {
    EXPECT_EQ(call.answers.find(id), std::string::npos) << call.method;
    if (call.method == "/sft.v1.DataService/DownloadBlob") {
      EXPECT_EQ(call.code, StatusCode::NOT_FOUND);
    }
    if (call.method == "/sft.v1.DataService/StatBlob") {
      EXPECT_EQ(call.answers, "") << "not there, and nothing received of it";
    }
  }
}

TEST_F(SecureServerTest, AHashAloneGivesNoDataSetAndItsContentDoes) {
  const auto ann = With(UserToken("ann", "alpha", v1::SUBMITTER));
  ASSERT_TRUE(Upload(ann, kSecretRows).ok());
  const auto bob = With(UserToken("bob", "beta", v1::SUBMITTER));
  v1::Job job;
  EXPECT_EQ(Submit(bob, &job).error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_FALSE(Upload(bob, "", io::Sha256Hex(kSecretRows)).ok()) << "no bytes, no proof";
  EXPECT_EQ(Submit(bob, &job).error_code(), StatusCode::FAILED_PRECONDITION);
  ASSERT_TRUE(Upload(bob, kSecretRows).ok());
  EXPECT_TRUE(Submit(bob, &job).ok());
  ASSERT_TRUE(Upload(ann, kSecretRows).ok()) << "once more is fine";
}

TEST_F(SecureServerTest, RequestIdsOfProjectsDoNotMeet) {
  const auto ann = With(UserToken("ann", "alpha", v1::SUBMITTER));
  const auto bob = With(UserToken("bob", "beta", v1::SUBMITTER));
  ASSERT_TRUE(Upload(ann, kSecretRows).ok());
  ASSERT_TRUE(Upload(bob, kSecretRows).ok());
  v1::Job first, again, other;
  ASSERT_TRUE(Submit(ann, &first, "nightly").ok());
  ASSERT_TRUE(Submit(ann, &again, "nightly").ok());
  EXPECT_EQ(first.name(), again.name());
  EXPECT_EQ(again.request_id(), "nightly");
  ASSERT_TRUE(Submit(bob, &other, "nightly").ok());
  EXPECT_NE(first.name(), other.name());
  EXPECT_EQ(Submit(bob, &other, "", "alpha").error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Submit(bob, &other, "with\nline").error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST_F(SecureServerTest, AnExpiredTokenIsRefusedAlsoWhereAStreamFollows) {
  const std::string token = UserToken("ann", "alpha", v1::SUBMITTER, /*lifetime=*/3);
  const auto ann = With(token);
  v1::Job job;
  const v1::WatchJobRequest watch = WatchOfNewJob(ann, &job);
  grpc::ClientContext context;
  const auto stub = v1::JobService::NewStub(ann);
  const auto reader = stub->WatchJob(&context, watch);
  while (reader->Read(&job)) {
  }
  const grpc::Status ended = reader->Finish();
  EXPECT_EQ(ended.error_code(), StatusCode::UNAUTHENTICATED) << ended.error_message();
  EXPECT_THAT(ended.error_message(), HasSubstr("expired at"));
  grpc::ClientContext second;
  v1::Identity identity;
  EXPECT_EQ(v1::AuthService::NewStub(ann)->WhoAmI(&second, {}, &identity).error_code(),
            StatusCode::UNAUTHENTICATED);
}

TEST_F(SecureServerTest, AStreamEndsWhenTheRoleInItsProjectIsTakenAway) {
  const auto ann = With(UserToken("ann", "alpha", v1::SUBMITTER));
  v1::Job job;
  const v1::WatchJobRequest watch = WatchOfNewJob(ann, &job);
  // One who has a role in it, and one who sees it as an admin.
  for (const bool admin : {false, true}) {
    v1::PutUserRequest put;
    UserToken("vic", "alpha", v1::VIEWER);
    put.mutable_user()->set_name("vic");
    put.mutable_user()->set_admin(admin);
    v1::User made;
    if (admin) {
      grpc::ClientContext context;
      ASSERT_TRUE(admin_->PutUser(&context, put, &made).ok());
    }
    grpc::ClientContext context;
    rpc::SetDeadline(context, std::chrono::seconds(20));
    const auto stub = v1::JobService::NewStub(With(last_token_.secret()));
    const auto reader = stub->WatchJob(&context, watch);
    ASSERT_TRUE(reader->Read(&job));
    // A role elsewhere makes one no less a stranger here.
    put.mutable_user()->set_admin(false);
    put.mutable_user()->add_roles()->set_project("beta");
    put.mutable_user()->mutable_roles(0)->set_role(v1::VIEWER);
    grpc::ClientContext second;
    ASSERT_TRUE(admin_->PutUser(&second, put, &made).ok());
    while (reader->Read(&job)) {
    }
    const grpc::Status ended = reader->Finish();
    EXPECT_EQ(ended.error_code(), admin ? StatusCode::NOT_FOUND : StatusCode::PERMISSION_DENIED)
        << ended.error_message();
  }
}

TEST_F(SecureServerTest, AStreamMoreThanACallerMayHaveIsRefused) {
  const auto ann = With(UserToken("ann", "alpha", v1::SUBMITTER));
  v1::Job job;
  const v1::WatchJobRequest watch = WatchOfNewJob(ann, &job);
  const auto stub = v1::JobService::NewStub(ann);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::Job>>> readers;
  const auto follow = [&] {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(stub->WatchJob(contexts.back().get(), watch));
    return readers.back()->Read(&job);
  };
  for (int i = 0; i < Gate::kMaxStreamsOfOne; ++i) ASSERT_TRUE(follow()) << i;
  EXPECT_FALSE(follow());
  EXPECT_EQ(readers.back()->Finish().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  const auto bob = With(UserToken("bob", "alpha", v1::SUBMITTER));
  EXPECT_TRUE(Upload(bob, kSecretRows).ok()) << "others are not concerned";
  for (const auto& context : contexts) context->TryCancel();
}

TEST_F(SecureServerTest, TheAuditSaysWhoDidWhatAndKeepsNoSecret) {
  const std::string token = UserToken("ann", "alpha", v1::SUBMITTER);
  const auto ann = With(token);
  ASSERT_TRUE(Upload(ann, kSecretRows).ok());
  v1::Job job;
  ASSERT_TRUE(Submit(ann, &job, "", "", /*dry_run=*/true).ok());
  ASSERT_TRUE(Submit(ann, &job).ok());
  v1::CancelJobRequest cancel;
  cancel.set_name(job.name());
  grpc::ClientContext context;
  ASSERT_TRUE(v1::JobService::NewStub(ann)->CancelJob(&context, cancel, &job).ok());
  const auto bob = With(UserToken("bob", "beta", v1::SUBMITTER));
  grpc::ClientContext second;
  EXPECT_FALSE(v1::JobService::NewStub(bob)->CancelJob(&second, cancel, &job).ok());
  v1::CancelSweepRequest cancel_sweep;
  cancel_sweep.set_sweep(SubmitSweep(ann).sweep());
  v1::CancelSweepResponse cancelled;
  grpc::ClientContext third;
  const auto scheduling = v1::SchedulingService::NewStub(ann);
  ASSERT_TRUE(scheduling->CancelSweep(&third, cancel_sweep, &cancelled).ok());
  EXPECT_EQ(cancelled.cancelled(), 2);
  v1::RemoveStoredRequest look;
  look.set_name(job.name());
  look.set_dry_run(true);
  v1::RemoveStoredResponse would_go;
  grpc::ClientContext fourth;
  ASSERT_TRUE(v1::StorageService::NewStub(ann)->RemoveStored(&fourth, look, &would_go).ok());
  std::vector<std::string> rows;
  for (const v1::AuditRecord& record : Audit()) {
    EXPECT_EQ(record.peer().rfind("ipv4:127.0.0.1:", 0), 0u) << record.peer();
    EXPECT_NE(record.token_id(), "");
    rows.insert(rows.begin(), record.principal() + " " + record.method() + " " + record.object() +
                                  " " + record.outcome());
    EXPECT_EQ(record.DebugString().find(ReadToken(token)->secret), std::string::npos);
  }
  EXPECT_THAT(rows,
              testing::ElementsAre(
                  "admin AuthService.PutUser users/ann OK", "admin AuthService.CreateToken ann OK",
                  "ann DataService.UploadBlob " + io::Sha256Hex(kSecretRows) + " OK",
                  "ann JobService.SubmitJob " + cancel.name() + " OK",
                  "ann JobService.CancelJob " + cancel.name() + " OK",
                  "admin AuthService.PutUser users/bob OK", "admin AuthService.CreateToken bob OK",
                  "ann SchedulingService.SubmitSweep " + cancel_sweep.sweep() + " OK",
                  "ann SchedulingService.CancelSweep " + cancel_sweep.sweep() + " OK",
                  "bob JobService.CancelJob " + cancel.name() + " NOT_FOUND"));
}

TEST_F(SecureServerTest, RefusedAndFailedCallsAreCountedByCallerCallAndCode) {
  const auto ann = With(UserToken("ann", "alpha", v1::SUBMITTER));
  const auto bob = With(UserToken("bob", "beta", v1::VIEWER));
  v1::Job job;
  ASSERT_TRUE(Upload(ann, kSecretRows).ok());
  const auto jobs = v1::JobService::NewStub(ann);
  const auto stranger =
      v1::JobService::NewStub(With("sft_aaaaaaaa_0123456789012345678901234567890123456789"));
  for (int i = 0; i < 50; ++i) {
    v1::SubmitJobRequest request;
    request.set_source_text("nonsense");
    request.set_request_id("r");
    grpc::ClientContext context;
    EXPECT_EQ(jobs->SubmitJob(&context, request, &job).error_code(), StatusCode::INVALID_ARGUMENT);
    v1::GetJobRequest get;
    get.set_name("job-none");
    grpc::ClientContext second;
    EXPECT_EQ(jobs->GetJob(&second, get, &job).error_code(), StatusCode::NOT_FOUND);
    EXPECT_EQ(Submit(bob, &job).error_code(), StatusCode::PERMISSION_DENIED);
    grpc::ClientContext third;
    EXPECT_EQ(stranger->GetJob(&third, get, &job).error_code(), StatusCode::UNAUTHENTICATED);
  }
  std::map<std::string, int64_t> calls;
  for (const v1::AuditRecord& record : Audit()) {
    if (record.outcome() == "OK") continue;
    calls[record.principal() + " " + record.method() + " " + record.outcome()] += record.calls();
  }
  EXPECT_THAT(calls,
              testing::ElementsAre(testing::Pair("ann JobService.GetJob NOT_FOUND", 50),
                                   testing::Pair("ann JobService.SubmitJob INVALID_ARGUMENT", 50),
                                   testing::Pair("bob JobService.SubmitJob PERMISSION_DENIED", 50),
                                   testing::Pair("nobody JobService.GetJob UNAUTHENTICATED", 50)));
}

TEST_F(NodeTest, ANodeSpeaksForItselfAndNobodyElse) {
  ASSERT_TRUE(Join("node-a", key_, join_token_, &certificate_).ok());
  const auto node = As(key_, certificate_);
  for (const Outcome& call :
       CallEveryRpc(node, {{"node", "node-b"}, {"sha256", std::string(64, 'a')}})) {
    const Rule& rule = server_->methods().Find(MethodOf(call.method))->rule;
    if (rule.caller == Caller::kUser || rule.caller == Caller::kJoiner) {
      EXPECT_EQ(call.code, StatusCode::PERMISSION_DENIED) << call.method << ": " << call.message;
    }
    if (call.method.ends_with("/AppendLog") || call.method.ends_with("/CommitArtifact") ||
        call.method.ends_with("/AppendEvents") || call.method.ends_with("/CommitCheckpoint")) {
      EXPECT_EQ(call.code, StatusCode::PERMISSION_DENIED) << call.method << ": " << call.message;
      EXPECT_THAT(call.message, HasSubstr("may not speak for node node-b"));
    }
    if (call.method.ends_with("/DownloadBlob")) {
      EXPECT_EQ(call.code, StatusCode::NOT_FOUND);
    }
  }
  grpc::ClientContext context;
  const auto stub = v1::WorkerService::NewStub(node);
  const auto stream = stub->Session(&context);
  v1::WorkerMessage hello;
  hello.mutable_register_()->set_node("node-b");
  ASSERT_TRUE(stream->Write(hello));
  v1::ServerMessage message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_THAT(message.welcome().refused(), HasSubstr("has the certificate of node-a"));
  EXPECT_FALSE(stream->Read(&message));
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::PERMISSION_DENIED);
}

TEST_F(NodeTest, ACertificateWithoutItsKeyOpensNoConnection) {
  ASSERT_TRUE(Join("node-a", key_, join_token_, &certificate_).ok());
  v1::Identity identity;
  grpc::ClientContext context;
  rpc::SetDeadline(context, std::chrono::seconds(5));
  EXPECT_FALSE(
      v1::AuthService::NewStub(As(other_key_, certificate_))->WhoAmI(&context, {}, &identity).ok());
  grpc::ClientContext second;
  EXPECT_TRUE(
      v1::AuthService::NewStub(As(key_, certificate_))->WhoAmI(&second, {}, &identity).ok());
  EXPECT_EQ(identity.user().name(), "nodes/node-a");
}

TEST_F(NodeTest, ARevokedNodeIsCutOffAtOnce) {
  ASSERT_TRUE(Join("node-a", key_, join_token_, &certificate_).ok());
  const auto stub = v1::WorkerService::NewStub(As(key_, certificate_));
  grpc::ClientContext context;
  const auto stream = stub->Session(&context);
  v1::WorkerMessage hello;
  hello.mutable_register_()->set_node("node-a");
  hello.mutable_register_()->set_incarnation("1");
  hello.mutable_register_()->set_protocol(2);
  ASSERT_TRUE(stream->Write(hello));
  v1::ServerMessage message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_EQ(message.welcome().refused(), "");
  EXPECT_GT(message.welcome().time_us(), 0);
  v1::RevokeTokenRequest revoke;
  revoke.set_id("nodes/node-a");
  v1::Token ended;
  grpc::ClientContext second;
  ASSERT_TRUE(admin_->RevokeToken(&second, revoke, &ended).ok());
  while (stream->Read(&message)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::UNAUTHENTICATED);
  v1::Identity identity;
  grpc::ClientContext third;
  EXPECT_EQ(
      v1::AuthService::NewStub(As(key_, certificate_))->WhoAmI(&third, {}, &identity).error_code(),
      StatusCode::UNAUTHENTICATED);
}

TEST_F(NodeTest, ClocksAnHourApartAndASecondKeyOfANameAreRefused) {
  grpc::Status status = Join("node-a", key_, join_token_, &certificate_, -3600);
  EXPECT_EQ(status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("min behind the server's, which says 20"));
  ASSERT_TRUE(Join("node-a", key_, join_token_, &certificate_).ok());
  status = Join("node-a", other_key_, join_token_, &certificate_);
  EXPECT_EQ(status.error_code(), StatusCode::ALREADY_EXISTS);
}

TEST_F(SecureServerTest, WhatIsWrongWithAServersCertificateIsExplained) {
  const rpc::Endpoint endpoint = rpc::ParseEndpoint(server_->address()).value();
  const WallTime now = Clock::Real().Wall();
  EXPECT_TRUE(tls::Explain("127.0.0.1", endpoint.port, authority_, now).ok());
  const auto why = [&](const std::string& authority, WallTime at, const std::string& host) {
    return std::string(Message(tls::Explain(host, endpoint.port, authority, at)));
  };
  EXPECT_THAT(why(authority_, now - std::chrono::hours(48), "127.0.0.1"),
              HasSubstr("is good only from"));
  EXPECT_THAT(why(authority_, now + std::chrono::hours(24 * 900), "127.0.0.1"),
              HasSubstr("expired at"));
  EXPECT_THAT(why(authority_, now, "127.1"), HasSubstr("not for 127.1"));
  const auto other =
      tls::MakeAuthority("x", {now - std::chrono::hours(1), now + std::chrono::hours(1)});
  EXPECT_THAT(why(other->certificate_pem, now, "127.0.0.1"), HasSubstr("not of this fleet"));
  EXPECT_TRUE(absl::IsPermissionDenied(
      tls::FetchAuthority("127.0.0.1", endpoint.port, std::string(64, '0')).status()));
}

TEST(CredentialsTest, ASecondInitChangesNothingAndKeysThatOthersMayReadAreRefused) {
  const std::string dir = io::MakeTempDir("init-test").value();
  ASSERT_TRUE(Initialise(dir, {"sft.example.org"}, Clock::Real()).ok());
  const std::string key = io::ReadFile(dir + "/tls/ca.key").value();
  EXPECT_TRUE(absl::IsAlreadyExists(Initialise(dir, {}, Clock::Real()).status()));
  EXPECT_EQ(io::ReadFile(dir + "/tls/ca.key").value(), key);
  ASSERT_TRUE(RenewServer(dir, {"10.0.0.2"}, Clock::Real()).ok());
  const auto names = tls::ReadCertificate(io::ReadFile(dir + "/tls/server.crt").value())->names;
  EXPECT_THAT(names, testing::IsSupersetOf({"sft.example.org", "10.0.0.2", "localhost"}));
  EXPECT_TRUE(LoadCredentials(dir, Clock::Real()).value().has_value());
  ASSERT_EQ(::chmod((dir + "/tls/server.key").c_str(), 0640), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(LoadCredentials(dir, Clock::Real()).status()));
  (void)io::RemoveAll(dir);
}

TEST(CredentialsTest, KeysThatAreGoneAreNotMadeAnewUnlessThatIsWanted) {
  const std::string dir = io::MakeTempDir("init-test").value();
  ASSERT_TRUE(Initialise(dir, {}, Clock::Real()).ok());
  ASSERT_TRUE(io::RemoveAll(dir + "/tls").ok());
  const absl::Status refused = Initialise(dir, {}, Clock::Real()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(Message(refused)), HasSubstr(dir + "/tls"));
  EXPECT_FALSE(io::Exists(dir + "/tls"));
  Server::Settings settings;
  settings.data_dir = dir;
  settings.listen = {"0.0.0.0", 0};
  EXPECT_THAT(std::string(Message(Server::Start(settings, Clock::Real()).status())),
              HasSubstr("--new-authority"));
  EXPECT_TRUE(Initialise(dir, {}, Clock::Real(), /*new_authority=*/true).ok());
  EXPECT_TRUE(io::Exists(dir + "/tls/ca.crt"));
  (void)io::RemoveAll(dir);
}

TEST(CredentialsTest, ACheckTellsAServerWithKeysFromOneWithout) {
  const std::string dir = io::MakeTempDir("check-test").value();
  EXPECT_FALSE(CheckCredentials(dir, Clock::Real()).value().has_value());
  ASSERT_TRUE(Initialise(dir, {"sft.example.org"}, Clock::Real()).ok());
  EXPECT_THAT(CheckCredentials(dir, Clock::Real()).value()->names,
              testing::Contains("sft.example.org"));
  Options options;
  options.data_dir = dir;
  options.listen = "0.0.0.0:0";
  options.disk_low = options.disk_full = "off";
  EXPECT_EQ(RunCheck(options), 0);
  ASSERT_TRUE(io::RemoveAll(dir + "/tls").ok());
  EXPECT_EQ(RunCheck(options), 1);
  (void)io::RemoveAll(dir);
}

TEST(HttpEndpointTest, ItIsOnLoopbackUnlessToldOtherwise) {
  const auto of = [](const rpc::Endpoint& listen, const std::string& http) {
    return HttpEndpoint(listen, http).value().ToString();
  };
  EXPECT_EQ(of({"0.0.0.0", 7070}, ""), "127.0.0.1:7071");
  EXPECT_EQ(of({"127.0.0.2", 7070}, ""), "127.0.0.2:7071");
  EXPECT_EQ(of({"0.0.0.0", 7070}, "0.0.0.0:80"), "0.0.0.0:80");
}

}  // namespace
}  // namespace sft::server
