#include "common/base/ids.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <thread>
#include <type_traits>

#include "common/base/random.h"

namespace sft {
namespace {

TEST(RandomIdTest, HasItsPrefixAndNoLookAlikes) {
  const std::string id = RandomId("job");
  EXPECT_TRUE(std::regex_match(id, std::regex("job-[a-hjkmnp-z0-9]{10}"))) << id;
  EXPECT_EQ(RandomId("", 6).size(), 6u);
}

TEST(RandomIdTest, ManyDiffer) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(RandomId("j"));
  EXPECT_EQ(ids.size(), 1000u);
}

TEST(RandomUuidTest, IsOfVersionFour) {
  const std::regex form("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}");
  for (int i = 0; i < 100; ++i) {
    const std::string uuid = RandomUuid();
    EXPECT_TRUE(std::regex_match(uuid, form)) << uuid;
  }
}

TEST(RandomTest, ASeedRepeatsTheWordsAndTheIdsOfAThread) {
  std::string first, second, other;
  std::thread([&] {
    SeedRandom(7);
    first = RandomId("job") + RandomUuid();
    SeedRandom(7);
    second = RandomId("job") + RandomUuid();
    SeedRandom(8);
    other = RandomId("job") + RandomUuid();
  }).join();
  EXPECT_EQ(first, second);
  EXPECT_NE(first, other);
}

TEST(IdsTest, IdsOfAPathAreFoundHoweverItIsWritten) {
  using Ids = std::vector<std::string>;
  EXPECT_EQ(IdsInPath("job", "/shared/job-abcdefgh23/model"), Ids{"job-abcdefgh23"});
  EXPECT_EQ(IdsInPath("job", "//x/..//JOB-ABCDEFGH23"), Ids{"job-abcdefgh23"});
  EXPECT_EQ(IdsInPath("job", "job-abcdefgh23/../job-22222222aa/"),
            (Ids{"job-abcdefgh23", "job-22222222aa"}));
  EXPECT_EQ(IdsInPath("job", "/data/job-1/my-job-abcdefgh23/job-abcdefgh234/job-abcdefgh1l"),
            Ids());
  EXPECT_EQ(IdsInPath("job", ""), Ids());
}

}  // namespace
}  // namespace sft
