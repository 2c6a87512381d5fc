#include <gmock/gmock.h>

#include "sft/v1/cluster_service.grpc.pb.h"
#include "tests/unit/server/services/secure_server.h"
#include "tests/unit/server/services/services_fixture.h"

namespace sft::server {
namespace {

using Reader = std::unique_ptr<grpc::ClientReader<v1::ListClusterEventsResponse>>;

// Reads until an event of that type comes.
v1::ClusterEvent Next(const Reader& reader, const std::string& type) {
  v1::ListClusterEventsResponse response;
  while (reader->Read(&response)) {
    for (const v1::ClusterEvent& event : response.events()) {
      if (event.type() == type) return event;
    }
  }
  ADD_FAILURE() << "no " << type;
  return {};
}

std::vector<std::string> Subjects(const v1::ListClusterEventsResponse& response) {
  std::vector<std::string> subjects;
  for (const v1::ClusterEvent& event : response.events()) {
    subjects.push_back(event.subject() + " " + event.type());
  }
  return subjects;
}

TEST_F(ServicesTest, WhatHappensIsListedAndFollowedFromAnyEventOn) {
  v1::UploadBlobResponse uploaded;
  ASSERT_TRUE(Upload(kTwoRows, &uploaded).ok());
  v1::Job job;
  ASSERT_TRUE(Submit(kTwoRowJob, &job).ok());
  v1::ListClusterEventsRequest list;
  list.set_page_size(1);
  v1::ListClusterEventsResponse page;
  grpc::ClientContext list_context;
  ASSERT_TRUE(cluster_->ListClusterEvents(&list_context, list, &page).ok());
  EXPECT_THAT(Subjects(page), testing::ElementsAre(job.name() + " submitted"));
  EXPECT_EQ(page.last_sequence(), 1);
  EXPECT_EQ(page.events(0).job_sequence(), 1);

  grpc::ClientContext watch_context;
  rpc::SetDeadline(watch_context, std::chrono::seconds(120));
  const Reader reader =
      cluster_->WatchClusterEvents(&watch_context, v1::WatchClusterEventsRequest());
  v1::ListClusterEventsResponse first;
  ASSERT_TRUE(reader->Read(&first)) << "at once, so that it is known from where it follows";
  EXPECT_EQ(first.events_size(), 0);
  EXPECT_GE(first.last_sequence(), 1);
  grpc::ClientContext cancel_context;
  v1::CancelJobRequest cancel;
  cancel.set_name(job.name());
  ASSERT_TRUE(jobs_->CancelJob(&cancel_context, cancel, &job).ok());
  const v1::ClusterEvent event = Next(reader, "state");
  EXPECT_EQ(event.subject(), job.name());
  EXPECT_THAT(event.message(), testing::HasSubstr("CANCELLED"));
  EXPECT_GT(event.sequence(), first.last_sequence());
  watch_context.TryCancel();
  (void)reader->Finish();

  grpc::ClientContext again_context;
  rpc::SetDeadline(again_context, std::chrono::seconds(120));
  v1::WatchClusterEventsRequest again;
  again.set_after(0);
  const Reader from_start = cluster_->WatchClusterEvents(&again_context, again);
  EXPECT_EQ(Next(from_start, "submitted").sequence(), 1);
  again_context.TryCancel();
  (void)from_start->Finish();
}

TEST_F(ServicesTest, AnEventThatNeverWasIsRefused) {
  for (const auto& [after, code] :
       {std::pair<int64_t, grpc::StatusCode>{1000, grpc::StatusCode::OUT_OF_RANGE},
        {-1, grpc::StatusCode::INVALID_ARGUMENT}}) {
    v1::ListClusterEventsRequest list;
    list.set_after(after);
    v1::ListClusterEventsResponse page;
    grpc::ClientContext context;
    EXPECT_EQ(cluster_->ListClusterEvents(&context, list, &page).error_code(), code);
  }
}

TEST_F(ServicesTest, AListHasItsOrderAndItsCountAndTokensBelongToTheirOrder) {
  v1::UploadBlobResponse uploaded;
  ASSERT_TRUE(Upload(kTwoRows, &uploaded).ok());
  std::string text = kTwoRowJob;
  for (const char* name : {"b", "c", "a"}) {
    v1::Job job;
    std::string named = text;
    named.insert(named.find("model"), std::string("name = \"") + name + "\"\n");
    ASSERT_TRUE(Submit(named, &job).ok());
  }
  v1::ListJobsRequest request;
  request.set_order_by("name");
  request.set_page_size(2);
  request.set_count(true);
  v1::ListJobsResponse page;
  grpc::ClientContext context;
  ASSERT_TRUE(jobs_->ListJobs(&context, request, &page).ok());
  ASSERT_EQ(page.jobs_size(), 2);
  EXPECT_EQ(page.jobs(0).display_name() + page.jobs(1).display_name(), "ab");
  EXPECT_EQ(page.total(), 3);
  EXPECT_TRUE(page.jobs(0).resolved_json().empty() && page.jobs(0).source_text().empty());
  request.set_page_token(page.next_page_token());
  grpc::ClientContext next_context;
  ASSERT_TRUE(jobs_->ListJobs(&next_context, request, &page).ok());
  ASSERT_EQ(page.jobs_size(), 1);
  EXPECT_EQ(page.jobs(0).display_name(), "c");
  EXPECT_EQ(page.next_page_token(), "");
  for (const char* order : {"name desc", "started", "", "age", "name up"}) {
    request.set_order_by(order);
    grpc::ClientContext other_context;
    EXPECT_EQ(jobs_->ListJobs(&other_context, request, &page).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT)
        << order;
  }
  request.clear_order_by();
  request.clear_page_token();
  request.set_query(std::string(201, 'q'));
  grpc::ClientContext long_context;
  EXPECT_EQ(jobs_->ListJobs(&long_context, request, &page).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServicesTest, AListHasTheFieldsThatItIsAskedFor) {
  v1::UploadBlobResponse uploaded;
  ASSERT_TRUE(Upload(kTwoRows, &uploaded).ok());
  v1::Job job;
  ASSERT_TRUE(Submit(kTwoRowJob, &job).ok());
  const auto list = [&](const std::vector<std::string>& fields, v1::ListJobsResponse& page) {
    v1::ListJobsRequest request;
    for (const std::string& field : fields) request.add_fields(field);
    grpc::ClientContext context;
    return jobs_->ListJobs(&context, request, &page);
  };
  v1::ListJobsResponse page;
  ASSERT_TRUE(list({"state", "priority", "group", "cost"}, page).ok());
  v1::Job wanted;
  wanted.set_name(job.name());
  wanted.set_state(v1::Job::PENDING);
  wanted.set_priority("normal");
  ASSERT_EQ(page.jobs_size(), 1);
  EXPECT_EQ(page.jobs(0).DebugString(), wanted.DebugString());
  for (const auto& [field, part] :
       {std::pair("nonsense", "fields: a job in a list has no \"nonsense\"; there are name, kind"),
        std::pair("source_text", "fields: \"source_text\" is in GetJob alone")}) {
    const grpc::Status status = list({"state", field}, page);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(part));
  }
}

TEST_F(ServicesTest, WordsOfAFilterAreOneLanguage) {
  v1::UploadBlobResponse uploaded;
  ASSERT_TRUE(Upload(kTwoRows, &uploaded).ok());
  for (const char* name : {"name = \"first run\"\ngroup = \"g\"\n", "name = \"lr=1\"\n"}) {
    std::string text = kTwoRowJob;
    text.insert(text.find("model"), name);
    v1::Job job;
    ASSERT_TRUE(Submit(text, &job).ok());
  }
  v1::ListJobsRequest request;
  v1::ListJobsResponse page;
  const auto names = [&](const std::string& filter) {
    request.set_filter(filter);
    grpc::ClientContext context;
    const grpc::Status status = jobs_->ListJobs(&context, request, &page);
    if (!status.ok()) return status.error_message();
    EXPECT_EQ(page.filtered(), !filter.empty());
    std::string all;
    for (const v1::Job& job : page.jobs()) all += "[" + job.display_name() + "]";
    return all;
  };
  EXPECT_EQ(names(""), "[lr=1][first run]");
  EXPECT_EQ(names("  state=pending,RUNNING kind:sft first "), "[first run]");
  EXPECT_EQ(names("\"first run\""), "[first run]");
  EXPECT_EQ(names("run first"), "[first run]");
  EXPECT_EQ(names("\"run first\""), "");
  EXPECT_EQ(names("group=g"), "[first run]");
  EXPECT_EQ(names("group=g state=failed"), "");
  EXPECT_EQ(names("\"lr=1\""), "[lr=1]");
  EXPECT_EQ(names("\"lr=1"), "[lr=1]") << "still being typed";
  EXPECT_EQ(names("owner=nobody"), "");
  EXPECT_EQ(names("c:x"), "");
  EXPECT_THAT(names("lr=1"), HasSubstr("filter: there is no lr=; there are state=, kind=, owner="));
  EXPECT_THAT(names("state=runing"), HasSubstr("filter: there is no state \"runing\"; there are "
                                               "PENDING, PREPARING"));
  EXPECT_THAT(names("state="), HasSubstr("there is no state \"\""));
  EXPECT_THAT(names("kind=kind_unspecified"), HasSubstr("there is no kind"));
  EXPECT_THAT(names("owner="), HasSubstr("owner= has no value"));
  EXPECT_THAT(names("group=g group=h"), HasSubstr("no job has both"));
  EXPECT_THAT(names(std::string(501, 'x')), HasSubstr("has 501 bytes"));
  EXPECT_EQ(names("first run first run first run first run"), "[first run]");
  EXPECT_THAT(names("1 2 3 4 5 6 7 8 9"), HasSubstr("at most 8 words"));
  request.add_states(v1::Job::FAILED);
  EXPECT_EQ(names("state=pending"), "") << "as both say";
}

TEST_F(SecureServerTest, EventsOfAProjectAreItsMembers) {
  const auto ann = With(UserToken("ann", "alpha", v1::SUBMITTER));
  const auto ben = With(UserToken("ben", "beta", v1::VIEWER));
  ASSERT_TRUE(Upload(ann, kSecretRows).ok());
  v1::Job job;
  ASSERT_TRUE(Submit(ann, &job).ok());
  const auto seen = [](const std::shared_ptr<grpc::Channel>& channel, const std::string& project) {
    v1::ListClusterEventsRequest list;
    list.set_project(project);
    v1::ListClusterEventsResponse page;
    grpc::ClientContext context;
    const grpc::Status status =
        v1::ClusterService::NewStub(channel)->ListClusterEvents(&context, list, &page);
    if (!status.ok()) return std::vector<std::string>{"refused"};
    EXPECT_GE(page.last_sequence(), 1) << "also where there was nothing to see";
    return Subjects(page);
  };
  EXPECT_THAT(seen(ann, ""), testing::Contains(job.name() + " submitted"));
  EXPECT_THAT(seen(With(admin_token_), "alpha"), testing::Contains(job.name() + " submitted"));
  EXPECT_THAT(seen(ben, ""), testing::IsEmpty());
  EXPECT_THAT(seen(ben, "alpha"), testing::ElementsAre("refused"));
  // Nor is it said why another project's job waits.
  v1::ExplainWaitRequest explain;
  explain.set_name(job.name());
  v1::WaitExplanation wait;
  grpc::ClientContext of_ann, of_ben;
  EXPECT_TRUE(v1::SchedulingService::NewStub(ann)->ExplainWait(&of_ann, explain, &wait).ok());
  EXPECT_THAT(wait.reason(), testing::HasSubstr("no worker has registered"));
  EXPECT_EQ(v1::SchedulingService::NewStub(ben)->ExplainWait(&of_ben, explain, &wait).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace sft::server
