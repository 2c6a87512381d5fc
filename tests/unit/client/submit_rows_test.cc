// What `submit` says of rows and makes of folders, before it sends them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "client/base/exit_codes.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SubmitRowsTest : public ::testing::Test {
 protected:
  SubmitRowsTest() : folder_(TestFolder()) { Write("job.toml", "[job]\n"); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Need(const std::string& path) {
    v1::NeededFile* needed = server_.resolution.add_needed_files();
    needed->set_key("job.data");
    needed->set_path(path);
  }

  const std::string folder_;
  FakeServer server_;
};

TEST_F(SubmitRowsTest, WhatIsKnownOfTheRowsIsSaidInThreeLines) {
  Need("rows.jsonl");
  Write("rows.jsonl", "{\"text\":\"a\"}\n{\"text\":\"abcdef\"}\n");
  const auto resolve = [&](const char* key, const char* value) {
    v1::ResolvedValue* resolved = server_.resolution.add_resolved();
    resolved->set_key(key);
    resolved->set_value(value);
  };
  resolve("job.model", "Qwen/Qwen3-8B");
  resolve("hyperparameters.sequence_length", "2048");
  const Outcome run = Sftctl(server_, {"submit", Path("job.toml")});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(run.err, HasSubstr("rows.jsonl: 2 rows: 2 text\n"
                                 "  tokens    not known: the model's tokenizer is not on this "
                                 "machine; the rows have 29 B, the longest 17 B\n"
                                 "  too long  not known for 2048 tokens "
                                 "(hyperparameters.sequence_length): `sftctl data check " +
                                 Path("rows.jsonl") + " --job " + Path("job.toml") + "` tells"));
  EXPECT_THAT(Sftctl(server_, {"submit", Path("job.toml"), "--json"}).err,
              Not(HasSubstr("tokens")));
}

TEST_F(SubmitRowsTest, AFolderOfRawDocumentsIsPacked) {
  std::filesystem::create_directory(Path("docs"));
  Write("docs/a.txt", "one\n");
  Write("docs/b.md", "two\n");
  Need("docs");
  const std::pair<const char*, const char*> values[] = {
      {"job.kind", "sft"}, {"training.loss", "sft"}, {"data.packing", "false"}};
  for (const auto& [key, value] : values) {
    v1::ResolvedValue* resolved = server_.resolution.add_resolved();
    resolved->set_key(key);
    resolved->set_value(value);
    resolved->set_origin("default");
  }
  ASSERT_EQ(Sftctl(server_, {"submit", Path("job.toml")}).code, kSucceeded);
  const auto packing = [&] {
    std::string said;
    for (const v1::Override& change : server_.submitted.back().overrides()) {
      if (change.key() == "data.packing") said += change.value() + " " + change.origin();
    }
    return said;
  };
  EXPECT_EQ(packing(), "true a folder of raw documents");
  server_.resolution.mutable_resolved(2)->set_origin("job.toml:3");
  ASSERT_EQ(Sftctl(server_, {"submit", Path("job.toml")}).code, kSucceeded);
  EXPECT_EQ(packing(), "");
  server_.resolution.mutable_resolved(2)->set_origin("default");
  Write("docs/c.jsonl", "{\"text\":\"a\"}\n");
  ASSERT_EQ(Sftctl(server_, {"submit", Path("job.toml")}).code, kSucceeded);
  EXPECT_EQ(packing(), "");
  // Training rows on the nodes, of which nothing is known here, beside others that are.
  std::filesystem::remove(Path("docs/c.jsonl"));
  server_.resolution.mutable_needed_files(0)->set_key("data.val");
  ASSERT_EQ(Sftctl(server_, {"submit", Path("job.toml")}).code, kSucceeded);
  EXPECT_EQ(packing(), "");
}

}  // namespace
}  // namespace sft::client
