#include "worker/node/data_cleaning.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "tests/unit/worker/base/test_node.h"

namespace sft::worker {
namespace {

using std::chrono::hours;

class DataCleaningTest : public TestNode {
 protected:
  void SetUp() override {
    TestNode::SetUp();
    setup_.disk_marks = *io::ParseDiskMarks("10%", "5%");
  }
  // Makes a file below data_dir, last used that long ago.
  void File(const std::string& name, hours ago) {
    Write(setup_.data_dir + "/" + name, "x");
    const timespec time{
        std::chrono::duration_cast<std::chrono::seconds>((now_ - ago).time_since_epoch()).count(),
        0};
    const timespec times[2] = {time, time};
    ASSERT_EQ(utimensat(AT_FDCWD, (setup_.data_dir + "/" + name).c_str(), times, 0), 0);
  }
  bool Has(const std::string& name) { return io::Exists(setup_.data_dir + "/" + name); }
  // Each measurement finds one more percent free.
  void Clean(const DataInUse& in_use, int percent_free) {
    const absl::Status cleaned = CleanData(in_use, setup_, now_, [&] {
      return io::DiskSpace{100, percent_free++};
    });
    EXPECT_TRUE(cleaned.ok()) << cleaned;
  }

  const WallTime now_ = Clock::Real().Wall();
};

TEST_F(DataCleaningTest, WithFreeSpaceOnlyDataUnusedForAMonthIsRemoved) {
  File("datasets/aa", hours(31 * 24));
  File("datasets/bb.part", hours(31 * 24));
  File("cache/1.rows", hours(31 * 24));
  File("datasets/cc", hours(29 * 24));
  File("cache/2.rows", hours(29 * 24));
  Clean({}, 50);
  for (const char* gone : {"datasets/aa", "datasets/bb.part", "cache/1.rows"}) {
    EXPECT_FALSE(Has(gone)) << gone;
  }
  EXPECT_TRUE(Has("datasets/cc"));
  EXPECT_TRUE(Has("cache/2.rows"));
}

TEST_F(DataCleaningTest, OnAFullDiskTheLeastRecentlyUsedIsRemovedFirst) {
  File("datasets/aa", hours(5));
  File("cache/1.rows", hours(4));
  File("datasets/bb", hours(3));
  File("cache/2.rows", hours(2));
  Clean({}, 8);  // 9 % after the first
  EXPECT_FALSE(Has("datasets/aa"));
  EXPECT_FALSE(Has("cache/1.rows"));
  EXPECT_TRUE(Has("datasets/bb"));
  EXPECT_TRUE(Has("cache/2.rows"));
}

TEST_F(DataCleaningTest, DataInUseStaysHoweverOldAndFullTheDisk) {
  File("datasets/aa", hours(40 * 24));
  File("datasets/bb.part", hours(40 * 24));
  File("cache/before.rows", hours(41 * 24));
  File("cache/after.rows", hours(39 * 24));
  Clean({{"aa", "bb"}, now_ - hours(40 * 24)}, 0);
  EXPECT_TRUE(Has("datasets/aa"));
  EXPECT_TRUE(Has("datasets/bb.part"));
  EXPECT_FALSE(Has("cache/before.rows"))
      << "prepared before the attempt began, and not opened since";
  EXPECT_TRUE(Has("cache/after.rows"));
  // The attempt has ended: its data was in use until then.
  Clean({}, 50);
  EXPECT_TRUE(Has("datasets/aa"));
  EXPECT_FALSE(Has("cache/after.rows"));
}

TEST_F(DataCleaningTest, ANodeThatHasStagedNothingHasNothingToClean) { Clean({}, 0); }

}  // namespace
}  // namespace sft::worker
