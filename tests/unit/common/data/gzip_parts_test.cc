#include "common/data/gzip_parts.h"

#include <gtest/gtest.h>

#include "common/base/json.h"
#include "common/data/byte_reader.h"
#include "common/io/file.h"

namespace sft::data {
namespace {

struct GzipPart {
  std::string packed;
  TextSum sum;
};

GzipPart MakePart(const std::vector<std::string>& texts) {
  GzipPart part;
  PartPacker packer([&](std::string_view packed) { part.packed += packed; });
  for (const std::string& text : texts) packer.Add(text);
  packer.Finish();
  part.sum = packer.sum();
  EXPECT_EQ(packer.packed_bytes(), static_cast<int64_t>(part.packed.size()));
  return part;
}

// What gzip makes of the file; its error where it takes it for damaged.
std::string Gunzip(const std::string& packed) {
  const std::string dir = io::MakeTempDir("sft-gzip-test-").value();
  EXPECT_TRUE(io::WriteFileAtomic(dir + "/t.gz", packed).ok());
  const std::string command = "gzip -dc " + dir + "/t.gz 2>&1 > " + dir + "/t";
  const int code = std::system(command.c_str());
  const std::string text = io::ReadFile(dir + "/t").value();
  EXPECT_TRUE(io::RemoveAll(dir).ok());
  return code == 0 ? text : "gzip refuses it";
}

TEST(GzipPartsTest, PartsOfSeveralProcessesAreOneFileThatGzipTakes) {
  std::string large;
  for (int i = 0; i < 300000; ++i) large += "line " + std::to_string(i * 7919 % 1000) + "\n";
  const GzipPart first = MakePart({"alpha ", "beta"}), second = MakePart({large}),
                 third = MakePart({});
  GzipFrame frame;
  std::string file = frame.Begin("begin ");
  for (const GzipPart* part : {&first, &second, &third}) {
    file += part->packed;
    frame.Add(part->sum);
  }
  file += frame.End(" end");
  EXPECT_EQ(Gunzip(file), "begin alpha beta" + large + " end");
  EXPECT_LT(file.size(), large.size() / 3);
}

TEST(GzipPartsTest, APartThatIsNotWhatItsSumSaysIsFound) {
  GzipPart part = MakePart({"text"});
  part.sum.crc32 ^= 1;
  GzipFrame frame;
  std::string file = frame.Begin("") + part.packed;
  frame.Add(part.sum);
  EXPECT_EQ(Gunzip(file + frame.End("")), "gzip refuses it");
}

TEST(GzipPartsTest, AnEmptyTraceIsJson) {
  const std::string text = std::string(kTraceBegin) + std::string(kTraceEnd);
  EXPECT_EQ(ParseJson(text)["traceEvents"].size(), 1u);
}

}  // namespace
}  // namespace sft::data
