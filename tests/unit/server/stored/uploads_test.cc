#include "common/data/dataset_check.h"
#include "server/store/files.h"
#include "tests/unit/server/jobs/intake_fixture.h"

namespace sft::server {
namespace {

TEST_F(IntakeTest, UploadsAtOnceAndUnfinishedOnesCountInTheQuota) {
  DiskWatch disk(dir_, {}, clock_);
  IntakeLimits limits(*store_, clock_, disk);
  const auto set_quota = [&](int64_t bytes) {
    ASSERT_TRUE(
        store_->Write([&](Database& db) {
                return store::PutQuota(db, {kDefaultProject, bytes, 0});
              })
            .ok());
  };
  const auto begin = [&](const std::string& content, size_t bytes, UploadSession& session) {
    v1::UploadBlobRequest message;
    message.set_sha256(io::Sha256Hex(content));
    message.set_size(static_cast<int64_t>(content.size()));
    message.set_purpose(v1::UploadBlobRequest::DATASET);
    message.set_data(content.substr(0, bytes));
    return session.Take(message);
  };
  const auto session = [&] {
    return std::make_unique<UploadSession>(*blobs_, *blobs_, *store_, clock_, Sender{"local"},
                                           &limits);
  };
  const std::string one = "{\"text\":\"1\"}\n", two = "{\"text\":\"2\"}\n";
  const auto size = static_cast<int64_t>(one.size());
  set_quota(2 * size - 1);
  auto first = session();
  ASSERT_TRUE(begin(one, 1, *first).ok());
  auto second = session();
  EXPECT_TRUE(absl::IsResourceExhausted(begin(two, two.size(), *second))) << "one is under way";
  // It ended half-way: that half counts.
  first.reset();
  set_quota(size);
  const absl::Status refused = begin(two, two.size(), *session());
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_NE(Message(refused).find("of uploads that have not ended"), std::string_view::npos)
      << refused;
  set_quota(size + 1);
  second = session();
  ASSERT_TRUE(begin(two, two.size(), *second).ok());
  // The quota was lowered meanwhile; the bytes sent are kept.
  set_quota(size - 1);
  EXPECT_TRUE(absl::IsResourceExhausted(second->Finish().status()));
  second.reset();
  EXPECT_EQ(blobs_->Find(io::Sha256Hex(two), kDefaultProject)->received, size);
  set_quota(size + 1);
  const auto again = session();
  v1::UploadBlobRequest rest;
  rest.set_sha256(io::Sha256Hex(two));
  rest.set_size(size);
  rest.set_offset(size);
  rest.set_purpose(v1::UploadBlobRequest::DATASET);
  ASSERT_TRUE(again->Take(rest).ok());
  EXPECT_TRUE(again->Finish().ok());
}

TEST_F(IntakeTest, AProjectHasOnlySoManyUploadsAtOnceAndUnfinished) {
  DiskWatch disk(dir_, {}, clock_);
  IntakeLimits limits(*store_, clock_, disk);
  const auto begin = [&](size_t number, const std::string& project = kDefaultProject) {
    const std::string content = fmt::format("{{\"text\":\"{}\"}}\n", number);
    v1::UploadBlobRequest message;
    message.set_sha256(io::Sha256Hex(content));
    message.set_size(static_cast<int64_t>(content.size()));
    message.set_purpose(v1::UploadBlobRequest::DATASET);
    const std::string key = project;
    const auto stat = blobs_->Find(message.sha256(), key);
    message.set_offset(stat.ok() ? stat->received : 0);
    message.set_data(content.substr(static_cast<size_t>(message.offset()), 1));
    auto session = std::make_unique<UploadSession>(*blobs_, *blobs_, *store_, clock_,
                                                   Sender{"local", project}, &limits);
    const absl::Status begun = session->Take(message);
    return std::pair(begun, std::move(session));
  };
  size_t next = 0;
  {
    std::vector<std::unique_ptr<UploadSession>> under_way;
    while (next < IntakeLimits::kMostUnderWay) {
      auto [begun, session] = begin(next++);
      ASSERT_TRUE(begun.ok()) << next << begun;
      under_way.push_back(std::move(session));
    }
    const absl::Status refused = begin(next).first;
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_NE(Message(refused).find("64 uploads to project default are under way"),
              std::string_view::npos)
        << refused;
    EXPECT_TRUE(begin(next, "other").first.ok());
    under_way.pop_back();
    EXPECT_TRUE(begin(next++).first.ok());
  }
  // Each of these breaks off after its first byte.
  while (next < IntakeLimits::kMostUnfinished) ASSERT_TRUE(begin(next++).first.ok()) << next;
  const absl::Status refused = begin(next).first;
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(Message(refused).find("have begun and not ended: send the rest of one"),
            std::string_view::npos)
      << refused;
  EXPECT_TRUE(begin(next, "other").first.ok());
  EXPECT_TRUE(begin(7).first.ok()) << "one that has begun may go on";
}

TEST_F(IntakeTest, AnUploadWithoutAHashIsNamedByTheServerAndCountsAsTheMostThatItMayBe) {
  DiskWatch disk(dir_, {}, clock_);
  IntakeLimits limits(*store_, clock_, disk);
  ASSERT_TRUE(
      store_->Write([&](Database& db) {
              return store::PutQuota(db, {kDefaultProject, 200, 0});
            })
          .ok());
  const auto session = [&] {
    return std::make_unique<UploadSession>(*blobs_, *blobs_, *store_, clock_, Sender{"local"},
                                           &limits);
  };
  const std::string content = "{\"text\":\"1\"}\n";
  v1::UploadBlobRequest first;
  first.set_purpose(v1::UploadBlobRequest::DATASET);
  first.set_size(120);
  first.set_data(content);
  auto one = session(), two = session();
  ASSERT_TRUE(one->Take(first).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(two->Take(first))) << "one is under way";
  const auto done = one->Finish();
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->blob().sha256(), io::Sha256Hex(content));
  EXPECT_EQ(done->blob().size(), static_cast<int64_t>(content.size()));
  EXPECT_EQ(done->rows(), 1);
  one.reset();
  two = session();
  EXPECT_TRUE(two->Take(first).ok()) << "it has become less";
  first.set_offset(1);
  EXPECT_TRUE(absl::IsInvalidArgument(session()->Take(first)));
  first.set_offset(0);
  first.set_purpose(v1::UploadBlobRequest::CHECKPOINT);
  EXPECT_TRUE(absl::IsInvalidArgument(session()->Take(first)));
}

TEST_F(IntakeTest, AFileThatWasNotUploadedIsNamed) {
  JoinWithModel(kConfig);
  const auto outcome = intake_.Submit(Request(), "local");
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->missing_files, std::vector<std::string>{"job.data"});
  EXPECT_TRUE(jobs_->List({})->jobs.empty());
}

TEST_F(IntakeTest, ABadDataSetIsRefusedAtTheEndOfItsUpload) {
  const absl::Status status = Upload("[1]\n");
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(Message(status),
            "line 1: a JSON number, not an object; a data set is JSON Lines, one object a line, or "
            "one JSON array of objects")
      << "the sender names the file";
  EXPECT_FALSE(blobs_->Find(io::Sha256Hex("[1]\n"))->complete);
}

TEST_F(IntakeTest, RowsOfNoKnownFormAreRefusedOrLeftOutAsTheJobSays) {
  JoinWithModel(kConfig);
  const std::string rows = "{\"text\":\"a\"}\n{\"foo\":1}\n";
  ASSERT_TRUE(Upload(rows).ok());
  const auto problems = [&](const std::string& more, const std::string& content) {
    v1::SubmitJobRequest request = Request(std::string(kJobFile) + more);
    request.mutable_files(0)->set_sha256(io::Sha256Hex(content));
    request.mutable_files(0)->set_client_path("my/rows.jsonl");
    v1::SubmitJobRequest dry = request;
    dry.set_validate_only(true);
    const auto found = Problems(request);
    EXPECT_EQ(Problems(dry), found) << "a dry run says the same";
    return found;
  };
  ASSERT_EQ(problems("", rows).size(), 1u);
  EXPECT_EQ(problems("", rows)[0].find("job.data: my/rows.jsonl: line 2: none of the row forms"),
            0u)
      << problems("", rows)[0];
  EXPECT_TRUE(jobs_->List({})->jobs.empty());
  EXPECT_TRUE(problems("[data]\nmax_examples = 1\n", rows).empty())
      << "it is not among those taken";
  EXPECT_TRUE(problems("[data]\non_bad_rows = \"skip\"\n", rows).empty());
  EXPECT_TRUE(problems("[data]\ncolumns = [\"text=foo\"]\n", rows).empty())
      << "the rows were looked at under other names";
  ASSERT_TRUE(Upload("{}\n").ok());
  ASSERT_EQ(problems("[data]\non_bad_rows = \"skip\"\n", "{}\n").size(), 1u);
  EXPECT_NE(problems("[data]\non_bad_rows = \"skip\"\n", "{}\n")[0].find("none of its 1 rows"),
            std::string::npos);
}

// The check of an earlier server may have known fewer forms.
TEST_F(IntakeTest, AVerdictOfAnEarlierServerIsMadeAgain) {
  JoinWithModel(kConfig);
  ASSERT_TRUE(Upload(kRows).ok());
  const auto age = [&] {
    ASSERT_TRUE(store_
                    ->Write([](Database& db) {
                      return db.Execute(
                          "UPDATE datasets SET check_version = 0, rows = 1, odd_rows = 1, "
                          "first_odd_row = 1, first_odd = 'line 1: none of the row forms'");
                    })
                    .ok());
  };
  age();
  EXPECT_TRUE(Problems(Request()).empty());
  DatasetRecord kept;
  ASSERT_TRUE(store_
                  ->Read([&](Database& db) -> absl::Status {
                    SFT_ASSIGN_OR_RETURN(const auto found,
                                         store::FindDataset(db, io::Sha256Hex(kRows)));
                    kept = found.value();
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_EQ(kept.check_version, data::kCheckVersion);
  EXPECT_EQ(kept.odd_rows, 0);
  EXPECT_EQ(kept.protocol, 1);
  age();
  ASSERT_TRUE(Upload(kRows).ok()) << "an upload of what is there is checked as well";
  EXPECT_TRUE(Problems(Request()).empty());
}

TEST_F(IntakeTest, HowRowsStandSaysWhichWorkersReadThem) {
  JoinWithModel(kConfig);
  const std::string rows =
      "{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},"
      "{\"from\":\"gpt\",\"value\":\"b\"}]}\n";
  ASSERT_TRUE(Upload(rows).ok());
  v1::SubmitJobRequest request = Request();
  request.mutable_files(0)->set_sha256(io::Sha256Hex(rows));
  const auto outcome = intake_.Submit(request, "local");
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_TRUE(outcome->problems.empty());
  JobRecord job;
  ASSERT_TRUE(store_
                  ->Read([&](Database& db) -> absl::Status {
                    SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(outcome->job.name()));
                    SFT_ASSIGN_OR_RETURN(job, store::FindJob(db, ref));
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_EQ(job.protocol, 2);
  EXPECT_NE(job.newer_keys.find("job.data (how its rows stand)"), std::string::npos)
      << job.newer_keys;
}

TEST_F(IntakeTest, EachOfSeveralFilesIsAskedFor) {
  JoinWithModel(kConfig);
  ASSERT_TRUE(Upload(kRows).ok());
  std::string text(kJobFile);
  const size_t data = text.find("data = ");
  ASSERT_NE(data, text.npos);
  text.erase(data, text.find('\n', data) - data);
  v1::SubmitJobRequest request =
      Request(text + "[data]\ntrain = [\"a.jsonl\", {path = \"b.jsonl\", weight = 2}]\n");
  auto outcome = intake_.Submit(request, "local");
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_TRUE(outcome->problems.empty()) << outcome->problems[0].message;
  EXPECT_EQ(outcome->missing_files, std::vector<std::string>{"data.mixture[1]"});
  v1::JobFile* second = request.add_files();
  *second = request.files(0);
  second->set_key("data.mixture[1]");
  outcome = intake_.Submit(request, "local");
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_TRUE(outcome->missing_files.empty());
  EXPECT_FALSE(outcome->job.name().empty());
}

TEST_F(IntakeTest, AnUploadOfACompleteBlobIsOk) {
  ASSERT_TRUE(Upload(kRows).ok());
  EXPECT_TRUE(Upload(kRows).ok());
}

}  // namespace
}  // namespace sft::server
