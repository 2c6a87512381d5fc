#include <gmock/gmock.h>

#include "sft/v1/admin_service.grpc.pb.h"
#include "sft/v1/webhook_service.grpc.pb.h"
#include "tests/unit/server/services/secure_server.h"

namespace sft::server {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;
using testing::Not;

// Who may do what with whose webhooks. Nothing is sent: the one event asked for never happens.
class WebhookServiceTest : public SecureServerTest {
 protected:
  using Channel = std::shared_ptr<grpc::Channel>;

  static grpc::Status Add(const Channel& as, v1::AddWebhookResponse* added, bool of_server = false,
                          const std::string& project = "") {
    v1::AddWebhookRequest request;
    request.set_url("https://8.8.8.8/hook");
    request.set_project(project);
    request.set_of_server(of_server);
    request.add_events(of_server ? "node.held" : "job.preempted");
    grpc::ClientContext context;
    return v1::WebhookService::NewStub(as)->AddWebhook(&context, request, added);
  }
  static grpc::Status List(const Channel& as, v1::ListWebhooksResponse* list,
                           bool of_server = false) {
    v1::ListWebhooksRequest request;
    request.set_of_server(of_server);
    grpc::ClientContext context;
    return v1::WebhookService::NewStub(as)->ListWebhooks(&context, request, list);
  }
  static grpc::Status Rotate(const Channel& as, const std::string& id,
                             v1::RotateWebhookResponse* made) {
    v1::RotateWebhookRequest request;
    request.set_id(id);
    grpc::ClientContext context;
    return v1::WebhookService::NewStub(as)->RotateWebhook(&context, request, made);
  }
  static grpc::Status Remove(const Channel& as, const std::string& id) {
    v1::RemoveWebhookRequest request;
    request.set_id(id);
    v1::RemoveWebhookResponse response;
    grpc::ClientContext context;
    return v1::WebhookService::NewStub(as)->RemoveWebhook(&context, request, &response);
  }
};

TEST_F(WebhookServiceTest, AProjectsWebhooksAreItsSubmitters) {
  const Channel ann = With(UserToken("ann", "alpha", v1::SUBMITTER));
  const Channel viewer = With(UserToken("eve", "alpha", v1::VIEWER));
  const Channel bob = With(UserToken("bob", "beta", v1::SUBMITTER));
  v1::AddWebhookResponse added, other;
  ASSERT_TRUE(Add(ann, &added).ok());
  EXPECT_EQ(added.webhook().project(), "alpha");
  EXPECT_EQ(added.webhook().created_by(), "ann");
  EXPECT_EQ(added.secret().find("whsec_"), 0u);
  EXPECT_EQ(Add(viewer, &other).error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Add(bob, &other, false, "alpha").error_code(), StatusCode::PERMISSION_DENIED);
  v1::ListWebhooksResponse list;
  ASSERT_TRUE(List(viewer, &list).ok());
  ASSERT_EQ(list.webhooks_size(), 1);
  EXPECT_THAT(list.DebugString(), Not(HasSubstr(added.secret())));
  v1::ListWebhooksResponse of_bob;
  ASSERT_TRUE(List(bob, &of_bob).ok());
  EXPECT_EQ(of_bob.webhooks_size(), 0);
  const std::string id = added.webhook().id();
  v1::RotateWebhookResponse made;
  EXPECT_EQ(Rotate(bob, id, &made).error_code(), StatusCode::NOT_FOUND) << "as if it were not";
  EXPECT_EQ(Remove(bob, id).error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(Rotate(viewer, id, &made).error_code(), StatusCode::PERMISSION_DENIED);
  ASSERT_TRUE(Rotate(ann, id, &made).ok());
  EXPECT_NE(made.secret(), added.secret());
  ASSERT_TRUE(Remove(ann, id).ok());
  EXPECT_EQ(Remove(ann, id).error_code(), StatusCode::NOT_FOUND);
  std::string audit;
  for (const v1::AuditRecord& record : Audit()) audit += record.DebugString();
  EXPECT_THAT(audit, HasSubstr("WebhookService.AddWebhook"));
  EXPECT_THAT(audit, HasSubstr("WebhookService.RotateWebhook"));
  EXPECT_THAT(audit, HasSubstr(id));
  EXPECT_THAT(audit, Not(HasSubstr(made.secret())));
}

TEST_F(WebhookServiceTest, AJobsWebhookIsItsOwnersAndNobodyElseIsToldItsSecret) {
  const Channel ann = With(UserToken("ann", "alpha", v1::SUBMITTER));
  const Channel carl = With(UserToken("carl", "alpha", v1::SUBMITTER));
  const Channel eve = With(UserToken("eve", "alpha", v1::VIEWER));
  const Channel bob = With(UserToken("bob", "beta", v1::SUBMITTER));
  ASSERT_TRUE(Upload(ann, kSecretRows).ok());
  v1::SubmitJobRequest submit;
  submit.set_source_text(std::string(kSecretJob) +
                         "[notify]\nwebhook = \"https://8.8.8.8/mine\"\nevents = "
                         "[\"job.preempted\"]\n");
  submit.set_file_name("job.toml");
  submit.add_files()->set_key("job.data");
  submit.mutable_files(0)->set_sha256(io::Sha256Hex(kSecretRows));
  v1::Job job;
  {
    grpc::ClientContext context;
    const grpc::Status submitted = v1::JobService::NewStub(ann)->SubmitJob(&context, submit, &job);
    ASSERT_TRUE(submitted.ok()) << submitted.error_message();
  }
  ASSERT_EQ(job.hooks_size(), 1);
  const std::string id = job.hooks(0).webhook(), secret = job.hooks(0).secret();
  EXPECT_EQ(secret.find("whsec_"), 0u);
  v1::GetJobRequest get;
  get.set_name(job.name());
  for (const Channel& reader : {ann, carl, eve, With(admin_token_)}) {
    grpc::ClientContext context;
    v1::Job seen;
    ASSERT_TRUE(v1::JobService::NewStub(reader)->GetJob(&context, get, &seen).ok());
    EXPECT_EQ(seen.hooks(0).webhook(), id);
    EXPECT_THAT(seen.DebugString(), Not(HasSubstr(secret)));
  }
  v1::ListWebhooksResponse list, of_bob;
  ASSERT_TRUE(List(eve, &list).ok());
  ASSERT_EQ(list.webhooks_size(), 1);
  EXPECT_TRUE(list.webhooks(0).of_jobs());
  EXPECT_THAT(list.DebugString(), Not(HasSubstr(secret)));
  // Another project's user sees none of it, and changes nothing.
  ASSERT_TRUE(List(bob, &of_bob).ok());
  EXPECT_EQ(of_bob.webhooks_size(), 0);
  const auto hooks = v1::WebhookService::NewStub(bob);
  v1::ListWebhookDeliveriesRequest deliveries;
  v1::ReplayWebhookRequest replay;
  v1::TestWebhookRequest test;
  for (const char* project : {"", "alpha"}) {
    const StatusCode refused =
        *project == 0 ? StatusCode::NOT_FOUND : StatusCode::PERMISSION_DENIED;
    deliveries.set_id(id);
    deliveries.set_project(project);
    replay.set_id(id);
    replay.set_project(project);
    test.set_id(id);
    test.set_project(project);
    grpc::ClientContext contexts[3];
    v1::ListWebhookDeliveriesResponse page;
    v1::ReplayWebhookResponse replayed;
    v1::WebhookDelivery tested;
    EXPECT_EQ(hooks->ListWebhookDeliveries(&contexts[0], deliveries, &page).error_code(), refused);
    EXPECT_EQ(hooks->ReplayWebhook(&contexts[1], replay, &replayed).error_code(), refused);
    EXPECT_EQ(hooks->TestWebhook(&contexts[2], test, &tested).error_code(), refused);
  }
  EXPECT_EQ(Remove(bob, id).error_code(), StatusCode::NOT_FOUND);
  // Her colleague may remove it, and gets no secret of it.
  v1::RotateWebhookResponse made;
  EXPECT_EQ(Rotate(carl, id, &made).error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Rotate(With(admin_token_), id, &made).error_code(), StatusCode::NOT_FOUND)
      << "not of the admin's own project";
  ASSERT_TRUE(Rotate(ann, id, &made).ok());
  EXPECT_NE(made.secret(), secret);
  std::string audit;
  for (const v1::AuditRecord& record : Audit()) audit += record.DebugString();
  EXPECT_THAT(audit, Not(HasSubstr(secret)));
  EXPECT_TRUE(Remove(carl, id).ok());
}

TEST_F(WebhookServiceTest, TheServersWebhooksAreItsAdmins) {
  const Channel ann = With(UserToken("ann", "alpha", v1::SUBMITTER));
  const Channel admin = With(admin_token_);
  v1::AddWebhookResponse added;
  EXPECT_EQ(Add(ann, &added, /*of_server=*/true).error_code(), StatusCode::PERMISSION_DENIED);
  ASSERT_TRUE(Add(admin, &added, /*of_server=*/true).ok());
  EXPECT_EQ(added.webhook().project(), "");
  v1::ListWebhooksResponse list;
  EXPECT_EQ(List(ann, &list, /*of_server=*/true).error_code(), StatusCode::PERMISSION_DENIED);
  ASSERT_TRUE(List(ann, &list).ok());
  EXPECT_EQ(list.webhooks_size(), 0);
  ASSERT_TRUE(List(admin, &list, /*of_server=*/true).ok());
  EXPECT_EQ(list.webhooks_size(), 1);
}

TEST_F(WebhookServiceTest, ABackupSaysThatSecretsAreNotInIt) {
  v1::AddWebhookResponse added;
  ASSERT_TRUE(Add(With(admin_token_), &added, /*of_server=*/true).ok());
  v1::BackupRequest request;
  request.set_with_keys(true);
  request.set_to(dir_ + "/copy");
  grpc::ClientContext context;
  const auto stub = v1::AdminService::NewStub(With(admin_token_));
  const auto reader = stub->Backup(&context, request);
  v1::BackupResponse response;
  std::string told;
  while (reader->Read(&response)) told += response.DebugString();
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_THAT(told, HasSubstr("secrets of webhooks"));
  EXPECT_FALSE(io::Exists(dir_ + "/copy/webhooks"));
}

}  // namespace
}  // namespace sft::server
