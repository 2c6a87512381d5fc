#include <gtest/gtest.h>

#include <functional>

#include "common/io/file.h"
#include "server/database/migrations.h"
#include "server/store/attempts.h"
#include "server/store/files.h"
#include "server/store/job_lists.h"
#include "server/store/jobs.h"
#include "server/store/nodes.h"
#include "server/store/progress.h"
#include "server/store/schedules.h"

namespace sft::server::store {
namespace {

class RowsTest : public testing::Test {
 protected:
  RowsTest()
      : dir_(io::MakeTempDir("rows-test").value()), db_(Database::Open(dir_ + "/db").value()) {
    EXPECT_TRUE(Migrate(*db_, dir_ + "/server.db").ok());
    NodeRecord node;
    node.name = "node-a";
    for (int i = 0; i < 4; ++i) node.slots.push_back({"node-a", i, "H100"});
    EXPECT_TRUE(PutNode(*db_, node).ok());
  }
  ~RowsTest() override {
    db_.reset();
    (void)io::RemoveAll(dir_);
  }

  JobRecord AddJob(const std::string& id, const std::string& request = "",
                   const std::string& type = "H100", const std::string& name = "",
                   const std::string& owner = "") {
    JobRecord job;
    job.id = id;
    job.display_name = name;
    job.owner = owner;
    job.gpu_type = type;
    job.project = "default";
    job.request_id = request;
    job.created_us = 1;
    job.spec.emplace();
    EXPECT_TRUE(InsertJob(*db_, job, {{"job.data", "hash", 3, "rows.jsonl", ""}}).ok());
    return job;
  }
  AttemptRecord Attempt(const std::string& uid, const std::string& job, int number) {
    AttemptRecord attempt;
    attempt.uid = uid;
    attempt.job_id = job;
    attempt.number = attempt.epoch = number;
    return attempt;
  }
  MemberRecord OnNodeA(const std::string& uid, std::vector<int> slots) {
    MemberRecord member;
    member.attempt_uid = uid;
    member.status.node = "node-a";
    member.slots = std::move(slots);
    return member;
  }

  const std::string dir_;
  std::unique_ptr<Database> db_;
};

TEST_F(RowsTest, ANodeIsKnownByItsName) {
  EXPECT_TRUE(HasNode(*db_, "node-a").value());
  EXPECT_FALSE(HasNode(*db_, "node-z").value());
}

TEST_F(RowsTest, AnEdgeIsTakenOnceAndWritesOneEvent) {
  JobRecord job = AddJob("job-1");
  JobRecord other_copy = job;
  ASSERT_TRUE(TakeEdge(*db_, job, JobState::kPreparing, "placed", 5).ok());
  EXPECT_EQ(job.state, JobState::kPreparing);
  EXPECT_TRUE(absl::IsFailedPrecondition(TakeEdge(*db_, other_copy, JobState::kCancelled, "", 6)));
  EXPECT_EQ(GetJob(*db_, "job-1")->state, JobState::kPreparing);
  const auto events = ListEvents(*db_, "job-1", 0, 10).value();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].message, "PENDING -> PREPARING: placed");
}

TEST_F(RowsTest, AnIllegalEdgeIsRefused) {
  JobRecord job = AddJob("job-1");
  EXPECT_TRUE(absl::IsFailedPrecondition(TakeEdge(*db_, job, JobState::kSucceeded, "", 5)));
  EXPECT_EQ(GetJob(*db_, "job-1")->state, JobState::kPending);
}

TEST_F(RowsTest, ARequestIdNamesOneJob) {
  AddJob("job-1", "r");
  JobRecord twin;
  twin.id = "job-2";
  twin.project = "default";
  twin.request_id = "r";
  twin.spec.emplace();
  EXPECT_TRUE(absl::IsAlreadyExists(InsertJob(*db_, twin, {})));
  EXPECT_EQ(FindByRequestId(*db_, "default", "r").value()->id, "job-1");
  EXPECT_FALSE(FindByRequestId(*db_, "default", "other")->has_value());
  AddJob("job-3");
  AddJob("job-4");
}

TEST_F(RowsTest, TheTextsOfAJobAreReadApartFromItsRow) {
  JobRecord job;
  job.id = "job-1";
  job.source_text = "[job]";
  job.spec.emplace().lora.r = 5;
  job.resolved_values = {{"job.name", "x", "line 1"}, {"job.model", "a\"\\\n\u00e9", "default"}};
  job.warnings = {{"job.name", 1, "odd"}};
  ASSERT_TRUE(InsertJob(*db_, job, {}).ok());
  JobRecord read = GetJob(*db_, "job-1").value();
  EXPECT_EQ(read.source_text, "");
  EXPECT_FALSE(read.spec.has_value());
  ASSERT_EQ(read.warnings.size(), 1u);
  EXPECT_EQ(read.warnings[0].message, "odd");
  EXPECT_EQ(ReadSpec(*db_, read)->lora.r, 5);
  EXPECT_EQ(ReadSpecText(*db_, read).value(), SpecText(*job.spec));
  ASSERT_TRUE(ReadTexts(*db_, read).ok());
  EXPECT_EQ(read.source_text, "[job]");
  ASSERT_EQ(read.resolved_values.size(), 2u);
  EXPECT_EQ(read.resolved_values[1].value, "a\"\\\n\u00e9");
  EXPECT_EQ(read.resolved_values[1].origin, "default");
}

// As older servers left them.
TEST_F(RowsTest, TheTextsOfAnOlderJobAreInItsRow) {
  AddJob("job-1");
  ASSERT_TRUE(
      db_->Execute("DELETE FROM job_texts; UPDATE jobs SET source_text = 's', resolved_json "
                   "= '{\"lora\":{\"r\":3}}', resolved_values = '[[\"k\",\"v\",\"o\"]]'")
          .ok());
  JobRecord read = GetJob(*db_, "job-1").value();
  EXPECT_EQ(ReadSpecText(*db_, read).value(), "{\"lora\":{\"r\":3}}");
  const spec::JobSpec spec = ReadSpec(*db_, read).value();
  EXPECT_EQ(spec.lora.r, 3);
  EXPECT_EQ(spec.lora.alpha, spec::JobSpec().lora.alpha) << "not known to the server of its time";
  ASSERT_TRUE(ReadTexts(*db_, read).ok());
  EXPECT_EQ(read.source_text, "s");
  ASSERT_EQ(read.resolved_values.size(), 1u);
  EXPECT_EQ(read.resolved_values[0].value, "v");
}

TEST_F(RowsTest, SettingsThatCannotBeReadSayWhyAndAreShownAsTheyAre) {
  const JobRecord job = AddJob("job-1");
  for (const auto& [stored, says] : std::vector<std::pair<std::string, std::string>>{
           {"{\"lora\":", "end of input"},
           {"[]", "must be a JSON object"},
           {R"({"lora":{"r":"many"}})", "lora.r has a wrong type or value"},
           {R"({"lora":{"of_later":1}})", "unknown key lora.of_later"},
       }) {
    Statement update = db_->Prepare("UPDATE job_texts SET resolved_json = ?").value();
    ASSERT_TRUE(update.Bind(stored).Run().ok());
    const absl::Status read = ReadSpec(*db_, job).status();
    EXPECT_TRUE(absl::IsDataLoss(read)) << read;
    EXPECT_NE(read.message().find(says), std::string_view::npos) << read;
    EXPECT_EQ(ReadSpecText(*db_, job).value(), stored);
  }
}

TEST_F(RowsTest, AJobWithoutSettingsIsNotStored) {
  JobRecord job;
  job.id = "job-1";
  EXPECT_TRUE(absl::IsInternal(InsertJob(*db_, job, {})));
}

TEST_F(RowsTest, ProgressIsAValueWhoseColumnIsAsItWas) {
  AddJob("job-1");
  ASSERT_TRUE(InsertAttempt(*db_, Attempt("attempt-1", "job-1", 1), {}).ok());
  const auto column = [&] { return ProgressColumn(GetAttempt(*db_, "attempt-1")->progress); };
  EXPECT_EQ(column(), ProgressColumn({}));
  Progress progress;
  progress.step = 3;
  progress.total_steps = 9;
  progress.loss = 0.5;
  progress.tokens_per_second = 1000;
  progress.gpu_memory_bytes = int64_t{1} << 40;
  progress.eta_seconds = 80;
  progress.val_loss = 0.25;
  progress.has_val_loss = true;
  progress.phase = "tokenise 1/2";
  progress.mfu = 0.4;
  progress.trainable_parameters = 10;
  progress.total_parameters = 20;
  progress.of_limit = 0.9;
  progress.traffic = {{"shard", 0.25, 12.5}};
  ASSERT_TRUE(SetProgress(*db_, "attempt-1", progress).ok());
  EXPECT_EQ(column(), ProgressColumn(progress));
  EXPECT_EQ(GetAttempt(*db_, "attempt-1")->progress.loss, 0.5);
  const std::vector<AxisTraffic> traffic = GetAttempt(*db_, "attempt-1")->progress.traffic;
  ASSERT_EQ(traffic.size(), 1u);
  EXPECT_EQ(traffic[0].axis, "shard");
  EXPECT_EQ(traffic[0].exposed_share, 0.25);
  EXPECT_EQ(traffic[0].gigabytes_per_second, 12.5);
  // As earlier servers wrote it and read it.
  v1::Progress stored;
  stored.set_step(5);
  const auto put = [&](const std::string& column) {
    return db_->Prepare("UPDATE attempts SET progress = ?")->BindBlob(column).Run();
  };
  ASSERT_TRUE(put(stored.SerializeAsString()).ok());
  EXPECT_EQ(GetAttempt(*db_, "attempt-1")->progress.step, 5);
  const absl::Status spoiled = put("\xff\xff");
  ASSERT_TRUE(spoiled.ok()) << spoiled;
  EXPECT_EQ(column(), ProgressColumn({})) << "none is shown";
}

TEST_F(RowsTest, ASlotBelongsToOneLiveAttempt) {
  AddJob("job-1");
  AddJob("job-2");
  AttemptRecord first = Attempt("a1", "job-1", 1);
  ASSERT_TRUE(InsertAttempt(*db_, first, {OnNodeA("a1", {0, 1})}).ok());
  // A transaction of the store would undo the rest of the second attempt; here there is none.
  EXPECT_TRUE(absl::IsAlreadyExists(
      InsertAttempt(*db_, Attempt("a2", "job-2", 1), {OnNodeA("a2", {1, 2})})));
  EXPECT_EQ(LiveHolders(*db_)->at({"node-a", 1}), "job-1");
  first.verdict.code = "x";
  ASSERT_TRUE(TakeAttemptEdge(*db_, first, AttemptState::kStopping, 7).ok());
  EXPECT_FALSE(LiveHolders(*db_)->empty());
  ASSERT_TRUE(TakeAttemptEdge(*db_, first, AttemptState::kFailed, 8).ok());
  EXPECT_FALSE(LiveHolders(*db_)->contains({"node-a", 0}));
  EXPECT_TRUE(InsertAttempt(*db_, Attempt("a3", "job-2", 2), {OnNodeA("a3", {0, 3})}).ok());
}

TEST_F(RowsTest, MembersComeBackAsTheyWent) {
  AddJob("job-1");
  ASSERT_TRUE(InsertAttempt(*db_, Attempt("a1", "job-1", 1), {OnNodeA("a1", {2, 0, 3})}).ok());
  MemberRecord member = MembersOf(*db_, "a1")->front();
  EXPECT_EQ(member.slots, (std::vector<int>{2, 0, 3}));
  member.status.state = MemberState::kRunning;
  member.status.seen = true;
  member.status.verdict.code = "bad_data";
  ASSERT_TRUE(UpdateMember(*db_, member).ok());
  EXPECT_EQ(HeldMembers(*db_, "node-a")->front().status.verdict.code, "bad_data");
  member.forgotten = true;
  ASSERT_TRUE(UpdateMember(*db_, member).ok());
  EXPECT_TRUE(HeldMembers(*db_, "node-a")->empty());
}

TEST_F(RowsTest, ListsAreNewestFirstFilteredAndPaged) {
  for (const char* id : {"job-1", "job-2", "job-3"}) AddJob(id);
  JobRecord second = GetJob(*db_, "job-2").value();
  ASSERT_TRUE(TakeEdge(*db_, second, JobState::kCancelled, "", 2).ok());
  JobFilter filter;
  filter.limit = 2;
  auto page = ListJobs(*db_, filter).value();
  ASSERT_EQ(page.size(), 2u);
  EXPECT_EQ(page[0].id, "job-3");
  filter.after = PlaceOf(page[1], filter.order);
  EXPECT_EQ(ListJobs(*db_, filter)->front().id, "job-1");
  filter = {{JobState::kPending}, "default"};
  EXPECT_EQ(ListJobs(*db_, filter)->size(), 2u);
  filter.project = "other";
  EXPECT_TRUE(ListJobs(*db_, filter)->empty());
  EXPECT_EQ(PendingJobs(*db_, 10)->front().id, "job-1");
}

// Ids of all pages of two, in their order; a job arrives before each page.
std::string Ids(Database& db, JobFilter filter, const std::function<void()>& arrive) {
  filter.limit = 2;
  std::string ids;
  while (true) {
    arrive();
    const auto page = ListJobs(db, filter).value();
    for (const JobRecord& job : page) ids += job.id + " ";
    if (page.size() < 2) return ids;
    filter.after = PlaceOf(page.back(), filter.order);
  }
}

TEST_F(RowsTest, EachOrderOfAListIsWholeHoweverManyJobsArriveMeanwhile) {
  // By their names b a C a, of which the last has not ended; ended in the order 2 1 3.
  const char* const names[] = {"b", "a", "C", "a"};
  const int ended[] = {20, 10, 30};
  for (int i = 0; i < 4; ++i) {
    JobRecord job = AddJob("job-" + std::to_string(i + 1), "", "H100", names[i], "ann");
    if (i == 3) continue;
    ASSERT_TRUE(TakeEdge(*db_, job, JobState::kCancelled, "", ended[i]).ok());
  }
  int others = 0;
  const auto arrive = [&] { AddJob("other-" + std::to_string(++others), "", "H100", "aa", "ben"); };
  JobFilter filter;
  filter.owner = "ann";
  EXPECT_EQ(Ids(*db_, filter, arrive), "job-4 job-3 job-2 job-1 ");
  filter.descending = false;
  EXPECT_EQ(Ids(*db_, filter, arrive), "job-1 job-2 job-3 job-4 ");
  filter.order = JobOrder::kName;
  EXPECT_EQ(Ids(*db_, filter, arrive), "job-2 job-4 job-1 job-3 ");
  filter.order = JobOrder::kEnded;
  EXPECT_EQ(Ids(*db_, filter, arrive), "job-4 job-2 job-1 job-3 ");
  filter.descending = true;
  EXPECT_EQ(Ids(*db_, filter, arrive), "job-3 job-1 job-2 job-4 ");
  filter.order = JobOrder::kName;
  EXPECT_EQ(Ids(*db_, filter, arrive), "job-3 job-1 job-4 job-2 ");
  EXPECT_EQ(CountJobs(*db_, filter, 10).value(), 4);
  EXPECT_EQ(CountJobs(*db_, filter, 3).value(), 3);
  filter.owner = "nobody";
  EXPECT_EQ(CountJobs(*db_, filter, 10).value(), 0);
}

TEST_F(RowsTest, ATextIsFoundAnywhereInTheNameOrTheIdAndIsNoPattern) {
  AddJob("job-1", "", "H100", "Llama 8B lr=1e-4");
  AddJob("job-2", "", "H100", "100% of_it");
  const auto found = [&](const std::string& query) {
    JobFilter filter;
    filter.query = query;
    const auto none = [] {};
    return Ids(*db_, filter, none);
  };
  EXPECT_EQ(found("llama"), "job-1 ");
  EXPECT_EQ(found("JOB-2"), "job-2 ");
  EXPECT_EQ(found("0% "), "job-2 ");
  EXPECT_EQ(found("f_i"), "job-2 ");
  EXPECT_EQ(found("b%l"), "");
  EXPECT_EQ(found("\\"), "");
  EXPECT_EQ(found(""), "job-2 job-1 ");
}

TEST_F(RowsTest, EachWordOfAFilterIsFoundInOneOfItsTexts) {
  AddJob("job-1", "", "H100", "Llama 8B 100%", "ann");
  JobRecord second = AddJob("job-2", "", "H100", "qwen", "ann");
  ASSERT_TRUE(SetReason(*db_, "job-2", JobState::kPending, "waits for a node", 2, false).ok());
  const auto found = [&](const std::vector<std::string>& words) {
    JobFilter filter;
    filter.words = words;
    EXPECT_EQ(static_cast<size_t>(CountJobs(*db_, filter, 10).value()),
              ListJobs(*db_, filter)->size());
    return Ids(*db_, filter, [] {});
  };
  EXPECT_EQ(found({"LLAMA"}), "job-1 ");
  EXPECT_EQ(found({"ann"}), "job-2 job-1 ");
  EXPECT_EQ(found({"ann", "for a node"}), "job-2 ");
  EXPECT_EQ(found({"job-", "0%"}), "job-1 ");
  EXPECT_EQ(found({"llama", "node"}), "");
  JobFilter filter;
  filter.states = {JobState::kPending, JobState::kRunning};
  filter.states_among = {JobState::kRunning, JobState::kFailed};
  EXPECT_EQ(Ids(*db_, filter, [] {}), "");
  filter.states_among = {JobState::kPending};
  EXPECT_EQ(Ids(*db_, filter, [] {}), "job-2 job-1 ");
  filter.states_among = {JobState::kFailed};
  EXPECT_EQ(CountJobs(*db_, filter, 10).value(), 0);
}

TEST_F(RowsTest, AListReadsTheTextsThatAreAskedFor) {
  AddJob("job-1");
  ASSERT_TRUE(SetReason(*db_, "job-1", JobState::kPending, "waits", 2, false).ok());
  ASSERT_TRUE(db_->Execute("UPDATE jobs SET metadata = '{\"a\":\"b\"}', warnings = "
                           "'[[\"k\",1,\"m\"]]', verdict = '{\"code\":\"succeeded\"}'")
                  .ok());
  const JobRecord whole = ListJobs(*db_, {})->front();
  EXPECT_EQ(whole.reason, "waits");
  EXPECT_EQ(whole.verdict.code, "succeeded");
  EXPECT_EQ(whole.warnings.size(), 1u);
  EXPECT_EQ(whole.metadata.size(), 1u);
  const JobColumns none{.reason = false, .verdict = false, .warnings = false, .metadata = false};
  const JobRecord bare = ListJobs(*db_, {}, none)->front();
  EXPECT_EQ(bare.id, "job-1");
  EXPECT_EQ(bare.created_us, whole.created_us);
  EXPECT_EQ(bare.priority, whole.priority);
  EXPECT_EQ(bare.reason + bare.verdict.code, "");
  EXPECT_EQ(bare.warnings.size() + bare.metadata.size(), 0u);
  JobColumns reason = none;
  reason.reason = true;
  EXPECT_EQ(ListJobs(*db_, {}, reason)->front().reason, "waits");
}

TEST_F(RowsTest, TheLastChangesOfAWaitAreKept) {
  AddJob("job-1");
  AddJob("job-2");
  for (int i = 1; i <= kMostWaitChanges + 5; ++i) {
    ASSERT_TRUE(AddWaitChange(*db_, {"job-1", i, {i, 2, 0}, {i + 1, 3, 4}, "why"}).ok());
  }
  ASSERT_TRUE(AddWaitChange(*db_, {"job-2", 7, {1, 0, 0}, {2, 0, 0}, "other"}).ok());
  const auto changes = WaitChangesOf(*db_, "job-1").value();
  ASSERT_EQ(changes.size(), static_cast<size_t>(kMostWaitChanges));
  EXPECT_EQ(changes.front().time_us, kMostWaitChanges + 5);
  EXPECT_EQ(changes.back().time_us, 6);
  EXPECT_EQ(changes.back().before, (WaitPlace{6, 2, 0}));
  EXPECT_EQ(changes.back().after, (WaitPlace{7, 3, 4}));
  EXPECT_EQ(WaitChangesOf(*db_, "job-2")->front().cause, "other");
}

TEST_F(RowsTest, TheOldestWaitingJobsOfEachTypeAreSeenHoweverManyWaitForAnother) {
  for (const char* id : {"job-1", "job-2", "job-3"}) AddJob(id);
  AddJob("cpu-1", "", "CPU");
  AddJob("job-4");
  AddJob("cpu-2", "", "CPU");
  std::vector<std::string> ids;
  const std::vector<JobRecord> jobs = PendingJobs(*db_, 2).value();
  for (const JobRecord& job : jobs) ids.push_back(job.id);
  EXPECT_EQ(ids, (std::vector<std::string>{"job-1", "job-2", "cpu-1", "cpu-2"}));
}

TEST_F(RowsTest, ARegisteredNodeAddsAVariantForEachSize) {
  NodeRecord node;
  node.name = "node-b";
  for (int i = 0; i < 2; ++i) node.slots.push_back({"node-b", i, "CPU"});
  ASSERT_TRUE(PutNode(*db_, node).ok());
  std::vector<std::string> names;
  const std::vector<VariantRecord> variants = ListVariants(*db_).value();
  for (const VariantRecord& variant : variants) names.push_back(variant.name);
  EXPECT_EQ(names, (std::vector<std::string>{"CPU-1x", "CPU-2x", "H100-1x", "H100-2x", "H100-3x",
                                             "H100-4x", "H100-8x"}));
}

TEST_F(RowsTest, ASlotThatANodeLostIsNotListed) {
  NodeRecord node = GetNode(*db_, "node-a").value();
  node.slots.pop_back();
  ASSERT_TRUE(PutNode(*db_, node).ok());
  EXPECT_EQ(GetNode(*db_, "node-a")->slots.size(), 3u);
}

TEST_F(RowsTest, AReasonIsNewsOnlyOnce) {
  AddJob("job-1");
  EXPECT_TRUE(SetReason(*db_, "job-1", JobState::kPending, "waiting", 1, true).value());
  EXPECT_FALSE(SetReason(*db_, "job-1", JobState::kPending, "waiting", 2, true).value());
  EXPECT_EQ(ListEvents(*db_, "job-1", 0, 10)->size(), 1u);
}

TEST_F(RowsTest, AnArtifactCommittedTwiceIsOne) {
  AddJob("job-1");
  ASSERT_TRUE(InsertAttempt(*db_, Attempt("a1", "job-1", 1), {OnNodeA("a1", {0})}).ok());
  ArtifactRecord artifact{"artifact-1", "job-1", "a1", "adapter", "", "", {{"x", "hash", 5}}, 5, 1};
  ASSERT_TRUE(PutArtifact(*db_, artifact).ok());
  artifact.id = "artifact-2";
  EXPECT_EQ(PutArtifact(*db_, artifact)->id, "artifact-1");
  ASSERT_EQ(ArtifactsOfJob(*db_, "job-1")->size(), 1u);
  EXPECT_EQ(GetArtifact(*db_, "artifact-1")->files[0].size, 5);
}

TEST_F(RowsTest, WhatIsMissingIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(GetJob(*db_, "none").status()));
  EXPECT_TRUE(absl::IsNotFound(GetNode(*db_, "none").status()));
  EXPECT_TRUE(absl::IsNotFound(GetAttempt(*db_, "none").status()));
  EXPECT_TRUE(absl::IsNotFound(GetArtifact(*db_, "none").status()));
}

}  // namespace
}  // namespace sft::server::store
