#include "common/io/sha256.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "common/io/file.h"

namespace sft::io {
namespace {

// Test vectors of FIPS 180-4 and NIST's example computations.
TEST(Sha256Test, AgreesWithThePublishedVectors) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Sha256Hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, DoesNotDependOnHowTheBytesAreDivided) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7);
  const std::string whole = Sha256Hex(text);
  for (const size_t step :
       {size_t{1}, size_t{3}, size_t{55}, size_t{63}, size_t{64}, size_t{65}, size_t{129}}) {
    Sha256 hash;
    for (size_t at = 0; at < text.size(); at += step)
      hash.Update(std::string_view(text).substr(at, step));
    EXPECT_EQ(hash.FinishHex(), whole) << "cut into " << step;
  }
}

TEST(Sha256Test, HashesAFileOfSeveralChunks) {
  const std::string folder = MakeTempDir("sha256-test").value();
  const std::string content(3'000'001, 'x');
  ASSERT_TRUE(WriteFileAtomic(folder + "/f", content).ok());
  const auto hash = HashFile(folder + "/f");
  ASSERT_TRUE(hash.ok()) << hash.status();
  EXPECT_EQ(hash->sha256, Sha256Hex(content));
  EXPECT_EQ(hash->size, 3'000'001);
  EXPECT_TRUE(absl::IsNotFound(HashFile(folder + "/missing").status()));
  ASSERT_TRUE(RemoveAll(folder).ok());
}

TEST(Sha256Test, AStopEndsTheHashOfALargeFileAtOnce) {
  const std::string folder = *MakeTempDir("sha256-test");
  const std::string path = folder + "/large";
  ASSERT_TRUE(WriteFileAtomic(path, "").ok());
  ASSERT_EQ(truncate(path.c_str(), off_t{500} * 1000 * 1000 * 1000), 0);  // sparse: takes no room
  int asked = 0;
  const absl::Status stopped = HashFile(path, [&] { return ++asked == 3; }).status();
  EXPECT_TRUE(absl::IsAborted(stopped)) << stopped;
  EXPECT_EQ(asked, 3);
  ASSERT_TRUE(RemoveAll(folder).ok());
}

TEST(Sha256Test, RecognisesAHash) {
  EXPECT_TRUE(IsSha256Hex(Sha256Hex("x")));
  EXPECT_FALSE(IsSha256Hex("../../etc/passwd"));
  EXPECT_FALSE(IsSha256Hex(Sha256Hex("x").substr(1)));
  EXPECT_FALSE(IsSha256Hex(std::string(64, 'A')));
}

}  // namespace
}  // namespace sft::io
