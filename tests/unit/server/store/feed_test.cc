#include "server/store/feed.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>

#include "common/io/file.h"
#include "server/database/migrations.h"
#include "server/store/jobs.h"
#include "server/store/store.h"

namespace sft::server::store {
namespace {

class FeedTest : public testing::Test {
 protected:
  FeedTest()
      : dir_(io::MakeTempDir("feed-test").value()), db_(Database::Open(dir_ + "/db").value()) {
    EXPECT_TRUE(Migrate(*db_, dir_ + "/server.db").ok());
  }
  ~FeedTest() override {
    db_.reset();
    (void)io::RemoveAll(dir_);
  }

  JobRecord AddJob(const std::string& id, const std::string& project) {
    JobRecord job;
    job.id = id;
    job.project = project;
    job.gpu_type = "H100";
    job.created_us = 1;
    job.spec.emplace();
    EXPECT_TRUE(InsertJob(*db_, job, {}).ok());
    return job;
  }
  void Note(const std::string& message) {
    FeedEvent event;
    event.time_us = 7;
    event.subject = "nodes/a";
    event.type = "up";
    event.message = message;
    EXPECT_TRUE(FeedOther(*db_, event).ok());
  }
  FeedPage Read(const FeedFilter& filter) {
    const auto page = ReadFeed(*db_, filter);
    EXPECT_TRUE(page.ok()) << page.status();
    return page.value_or(FeedPage());
  }
  static std::string Text(const FeedPage& page) {
    std::string text;
    for (const FeedEvent& each : page.events) {
      text += fmt::format("{}:{}{}:{} ", each.sequence, each.job_id, each.subject, each.message);
    }
    return text;
  }

  const std::string dir_;
  std::unique_ptr<Database> db_;
};

TEST_F(FeedTest, JobsAndNodesShareOneSequence) {
  JobRecord job = AddJob("job-1", "p");
  ASSERT_TRUE(TakeEdge(*db_, job, JobState::kCancelled, "by ann", 2).ok());
  Note("back");
  ASSERT_TRUE(AddEvent(*db_, "job-1", {0, 9, "warning", "late", 3}).ok());
  const FeedPage page = Read({});
  EXPECT_EQ(Text(page), "1:job-1:PENDING -> CANCELLED: by ann 2:nodes/a:back 3:job-1:late ");
  EXPECT_EQ(page.last, 3);
  EXPECT_FALSE(page.more);
  EXPECT_EQ(page.events[0].project, "p");
  EXPECT_EQ(page.events[2].job_sequence, 2) << "its sequence among the events of the job";
  EXPECT_EQ(page.events[2].type, "warning");
  EXPECT_EQ(page.events[2].attempt, 3);
  EXPECT_EQ(page.events[2].time_us, 9);
}

TEST_F(FeedTest, ShowsAProjectsEventsToItsMembersAndMovesOnPastTheRest) {
  AddJob("job-p", "p");
  AddJob("job-q", "q");
  for (const char* id : {"job-p", "job-q", "job-p"}) {
    ASSERT_TRUE(AddEvent(*db_, id, {0, 1, "t", "m", 0}).ok());
  }
  Note("n");
  ASSERT_TRUE(AddEvent(*db_, "job-q", {0, 1, "t", "m", 0}).ok());
  FeedFilter filter;
  filter.visible = std::vector<std::string>{"p"};
  EXPECT_EQ(Text(Read(filter)), "1:job-p:m 3:job-p:m 4:nodes/a:n ");
  EXPECT_EQ(Read(filter).last, 5) << "there was nothing to see";
  filter.limit = 2;
  EXPECT_TRUE(Read(filter).more);
  EXPECT_EQ(Read(filter).last, 3);
  filter.after = 3;
  EXPECT_EQ(Text(Read(filter)), "4:nodes/a:n ");
  filter = {};
  filter.project = "q";
  EXPECT_EQ(Text(Read(filter)), "2:job-q:m 5:job-q:m ");
  filter.visible = std::vector<std::string>();
  EXPECT_EQ(Text(Read(filter)), "");
}

TEST_F(FeedTest, WhoWasAwayTooLongIsToldWhatIsGone) {
  ASSERT_TRUE(db_->Execute("BEGIN").ok());
  for (int i = 0; i < kFeedKept + 2 * kFeedTrimmed; ++i) Note("x");
  ASSERT_TRUE(db_->Execute("COMMIT").ok());
  FeedFilter filter;
  filter.limit = 1;
  const int64_t oldest = Read(filter).events.at(0).sequence;
  EXPECT_EQ(oldest, 2 * kFeedTrimmed + 1);
  EXPECT_EQ(Read(filter).gap_last, 0) << "who begins misses nothing";
  filter.after = 10;
  EXPECT_EQ(Read(filter).gap_first, 11);
  EXPECT_EQ(Read(filter).gap_last, oldest - 1);
  EXPECT_EQ(Read(filter).events.at(0).sequence, oldest);
  filter.after = oldest - 1;
  EXPECT_EQ(Read(filter).gap_last, 0);
  filter.after = kFeedKept + 2 * kFeedTrimmed;
  EXPECT_TRUE(Read(filter).events.empty());
  ++filter.after;
  EXPECT_TRUE(absl::IsOutOfRange(ReadFeed(*db_, filter).status()));
}

TEST(FeedStoreTest, TellsOfEachCommitWithEventsAndOfNoOther) {
  const std::string dir = io::MakeTempDir("feed-test").value();
  {
    const auto store = Store::Open({dir + "/server.db"}).value();
    std::atomic<int> told = 0;
    store->WhenFed([&] { ++told; });
    FeedEvent event;
    event.subject = "server";
    ASSERT_TRUE(store->Write([&](Database& db) { return FeedOther(db, event); }).ok());
    EXPECT_EQ(told, 1);
    ASSERT_TRUE(store->Write([&](Database& db) { return db.Execute("SELECT 1"); }).ok());
    EXPECT_EQ(told, 1);
  }
  (void)io::RemoveAll(dir);
}

}  // namespace
}  // namespace sft::server::store
