#include "worker/node/safetensors_check.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>

#include "common/io/file.h"

namespace sft::worker {
namespace {

std::string Check(const std::string& header, int data_bytes) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> 8 * i);
  const std::string path = testing::TempDir() + "/check.safetensors";
  EXPECT_TRUE(io::WriteFileAtomic(path, bytes + header + std::string(data_bytes, 'd')).ok());
  const absl::Status checked = CheckSafetensors(path);
  return checked.ok() ? "" : std::string(Message(checked));
}

TEST(SafetensorsCheckTest, AHeaderIsAnObjectOfTensorsThatFillTheFile) {
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const std::string b = R"("b":{"data_offsets":[4,6],"more":{"data_offsets":[0,99]},"x":[[1]]})";
  EXPECT_EQ(Check("{" + a + "}", 4), "");
  EXPECT_EQ(Check("{" + b + "," + a + "}", 6), "");
  EXPECT_EQ(Check(R"({"__metadata__":{"x":"y","data_offsets":"z"},)" + a + "}", 4), "");
  EXPECT_EQ(Check(R"({"__metadata__":[1,{"data_offsets":[7]}],)" + a + "}", 4), "");
  EXPECT_EQ(Check("{" + a + "}", 3), "is truncated: 64 bytes of 65");
  EXPECT_EQ(Check(R"({"a":{"data_offsets":[0,1000]}})", 4),
            "is truncated: 43 bytes, tensor a ends at 1000");
  for (const char* header :
       {"[]", "1", "", "{", R"({"a":1})", R"({"a":[]})", R"({"a":{}})",
        R"({"a":{"data_offsets":4}})", R"({"a":{"data_offsets":{}}})",
        R"({"a":{"data_offsets":[0]}})", R"({"a":{"data_offsets":[0,1,2]}})",
        R"({"a":{"data_offsets":[0,"4"]}})", R"({"a":{"data_offsets":[0,-4]}})",
        R"({"a":{"data_offsets":[[0,4]]}})", R"({"a":{"data_offsets":[0,4]},"b":{"x":[0,4]}})"}) {
    EXPECT_EQ(Check(header, 4), "is not a safetensors file") << header;
  }
}

// As JSON values they would be thirty times as large as in the file.
TEST(SafetensorsCheckTest, AHeaderOfManySmallValuesTakesLittleMemory) {
  std::string header = R"({"__metadata__":[{})";
  while (header.size() < 60'000'000) header += ",{}";
  header += R"(],"a":{"data_offsets":[0,4]}})";
  rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  EXPECT_EQ(Check(header, 4), "");
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 300'000);  // KB: a few times the text
  EXPECT_EQ(Check(std::string(60'000'000, '['), 0), "is not a safetensors file");
}

}  // namespace
}  // namespace sft::worker
