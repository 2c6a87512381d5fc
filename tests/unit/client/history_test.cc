// What a follower of a log is told beside the log, TensorBoard files and backups.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "client/base/exit_codes.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

using ::testing::HasSubstr;

v1::ReadLogResponse Answer(int attempt, int64_t offset, const std::string& data) {
  v1::ReadLogResponse answer;
  answer.set_attempt(attempt);
  answer.set_offset(offset);
  answer.set_data(data);
  return answer;
}

TEST(LogsTest, GapsAndRestartsAreSaidBesideTheLogNotInIt) {
  FakeServer server;
  server.log_answers = {Answer(1, 0, "one\n"), Answer(1, 12'349, "tail\n"), Answer(2, 0, ""),
                        Answer(2, 0, "again\n")};
  server.log_answers[1].mutable_gap()->set_begin(4);
  server.log_answers[1].mutable_gap()->set_end(12'349);
  server.log_answers[3].set_end_of_file(true);
  server.watches = {{.jobs = {MakeJob("job-a", v1::Job::SUCCEEDED)}}};
  const Outcome run = Sftctl(server, {"logs", "job-a", "--follow"});
  EXPECT_EQ(run.code, kSucceeded);
  EXPECT_EQ(run.out, "one\ntail\nagain\n");
  EXPECT_THAT(run.err,
              HasSubstr("... 12,345 bytes were removed by the log's limit: 4 to 12,348\n"));
  EXPECT_THAT(run.err, HasSubstr("... attempt 1 has ended; what follows is of attempt 2\n"));
  ASSERT_EQ(server.log_requests.size(), 1u);
  EXPECT_TRUE(server.log_requests[0].next_attempts());
}

TEST(LogsTest, OneAttemptThatIsAskedForEndsWithItself) {
  FakeServer server;
  server.log_answers = {Answer(1, 0, "one\n")};
  server.log_answers[0].set_end_of_file(true);
  EXPECT_EQ(Sftctl(server, {"logs", "job-a", "--attempt", "1"}).out, "one\n");
  EXPECT_FALSE(server.log_requests[0].next_attempts());
  EXPECT_EQ(server.log_requests[0].attempt(), 1);
}

TEST(TensorBoardTest, FilesLieInAFolderOfTheJobAndReplaceOlderOnes) {
  FakeServer server;
  const std::string folder = TestFolder();
  for (const auto& [file, data] : std::vector<std::pair<std::string, std::string>>{
           {"events.1", "ab"}, {"events.1", "cd"}, {"events.2", "e"}}) {
    v1::ReadTensorBoardResponse chunk;
    chunk.set_file(file);
    chunk.set_data(data);
    server.tensorboard.push_back(chunk);
  }
  for (int round = 0; round < 2; ++round) {
    const Outcome run = Sftctl(server, {"metrics", "job-a", "--tensorboard", folder});
    EXPECT_EQ(run.code, kSucceeded) << run.err;
    EXPECT_EQ(run.out, folder + "/job-a\n");
    EXPECT_THAT(run.err, HasSubstr("tensorboard --logdir " + folder));
    EXPECT_EQ(ReadTestFile(folder + "/job-a/events.1"), "abcd");
    EXPECT_EQ(ReadTestFile(folder + "/job-a/events.2"), "e");
  }
  server.tensorboard[0].set_file("../out");
  EXPECT_NE(Sftctl(server, {"metrics", "job-a", "--tensorboard", folder}).code, kSucceeded);
  EXPECT_FALSE(std::filesystem::exists(folder + "/out"));
  server.tensorboard.clear();
  EXPECT_EQ(Sftctl(server, {"metrics", "job-a", "--tensorboard", folder}).code, kNotFound);
}

TEST(BackupTest, ADownloadedCopyAppearsWhenItIsWhole) {
  FakeServer server;
  const std::string folder = TestFolder() + "/copy";
  server.backup.resize(3);
  server.backup[0].mutable_result()->set_schema(3);
  server.backup[1].set_file("manifest.json");
  server.backup[1].set_data("{}");
  server.backup[2].set_file("server.db");
  server.backup[2].set_data("pages");
  const Outcome run = Sftctl(server, {"admin", "backup", "--output", folder});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(run.out, folder + "\n");
  EXPECT_TRUE(server.backup_requests[0].download());
  EXPECT_EQ(ReadTestFile(folder + "/server.db"), "pages");
  EXPECT_FALSE(std::filesystem::exists(folder + ".partial"));
  EXPECT_EQ(Sftctl(server, {"admin", "backup", "--output", folder}).code, kUsage) << "is there";
}

TEST(BackupTest, OneThatStaysWithTheServerNamesItsPlace) {
  FakeServer server;
  server.backup.resize(1);
  server.backup[0].mutable_result()->set_path("/backup/monday");
  const Outcome run = Sftctl(server, {"admin", "backup", "--to", "/backup/monday"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(run.out, "/backup/monday\n");
  EXPECT_EQ(server.backup_requests[0].to(), "/backup/monday");
  EXPECT_EQ(Sftctl(server, {"admin", "backup", "--to", "/a", "--output", "b"}).code, kUsage);
}

TEST(BackupTest, WhatIsNotInItAndKeysThatAreAreTold) {
  FakeServer server;
  server.backup.resize(1);
  v1::BackupResult& result = *server.backup[0].mutable_result();
  result.set_path("/backup/monday");
  result.add_left_out("the fleet's keys in tls/ (--with-keys takes them)");
  const Outcome without = Sftctl(server, {"admin", "backup"});
  EXPECT_THAT(without.err, HasSubstr("not in it: the fleet's keys in tls/"));
  EXPECT_FALSE(server.backup_requests[0].with_keys());
  EXPECT_THAT(Sftctl(server, {"admin", "backup", "--json"}).out,
              HasSubstr("\"the fleet's keys in tls/ (--with-keys takes them)\""));

  // A server of an earlier release does not know what is asked for.
  const Outcome old = Sftctl(server, {"admin", "backup", "--with-keys", "--with-blobs"});
  EXPECT_TRUE(server.backup_requests[2].with_keys());
  EXPECT_TRUE(server.backup_requests[2].with_blobs());
  EXPECT_THAT(old.err, HasSubstr("warning: no keys are in it"));
  EXPECT_THAT(old.err, HasSubstr("warning: no data sets and adapters are in it"));

  result.set_has_keys(true);
  result.set_has_blobs(true);
  const Outcome with = Sftctl(server, {"admin", "backup", "--with-keys", "--with-blobs"});
  EXPECT_EQ(with.out, "/backup/monday\n");
  EXPECT_THAT(with.err, HasSubstr("warning: it holds the fleet's private keys"));
  EXPECT_EQ(Sftctl(server, {"admin", "backup", "--with-keys", "--output", "b"}).code, kUsage);
}

}  // namespace
}  // namespace sft::client
