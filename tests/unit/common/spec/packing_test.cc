#include <gtest/gtest.h>

#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

TEST(PackingTest, RawDocumentsArePackedByDefault) {
  const auto packs = [](const std::string& data, const std::vector<Override>& more = {},
                        bool taken_before = false) {
    std::vector<Override> overrides = {Set("job.data", data)};
    overrides.insert(overrides.end(), more.begin(), more.end());
    const Resolution r = Resolve(Minimal(), "job.toml", overrides, {.taken_before = taken_before});
    EXPECT_TRUE(r.ok()) << Describe(r.problems);
    return r.spec.data.packing;
  };
  for (const char* name : {"book.txt", "node:/data/a.MD", "b.txt.zst"}) EXPECT_TRUE(packs(name));
  for (const char* name : {"rows.jsonl", "txt", "a.txt.jsonl", "b.csv.gz"}) {
    EXPECT_FALSE(packs(name)) << name;
  }
  EXPECT_FALSE(packs("book.txt", {Set("data.packing", "false")}));
  EXPECT_FALSE(packs("book.txt", {Set("training.loss", "dpo")}));
  EXPECT_FALSE(packs("book.txt", {}, /*taken_before=*/true)) << "a job goes on as it began";
  const std::string no_data = "job.model = \"m\"\ncompute.gpu_type = \"H100\"\n";
  const auto mixed = [&](const std::string& files) {
    const Resolution r = ResolveText(no_data + "data.train = [" + files + "]\n");
    EXPECT_TRUE(r.ok()) << Describe(r.problems);
    return r.spec.data.packing;
  };
  EXPECT_TRUE(mixed("{path = \"a.txt\", weight = 0.5}, \"b.md\""));
  EXPECT_FALSE(mixed("{path = \"a.txt\"}, \"b.jsonl\""));
}

}  // namespace
}  // namespace sft::spec
