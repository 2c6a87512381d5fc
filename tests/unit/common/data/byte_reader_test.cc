#include "common/data/byte_reader.h"

#include <bzlib.h>
#include <gtest/gtest.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include "common/io/file.h"

namespace sft::data {
namespace {

std::string Gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string Zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);  // as the tool does
  packed.resize(ZSTD_compress2(context, packed.data(), packed.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return packed;
}

std::string Bzip2(const std::string& text) {
  std::string packed(text.size() + text.size() / 50 + 700, '\0');
  auto size = static_cast<unsigned>(packed.size());
  EXPECT_EQ(BZ2_bzBuffToBuffCompress(packed.data(), &size, const_cast<char*>(text.data()),
                                     static_cast<unsigned>(text.size()), 9, 0, 0),
            BZ_OK);
  packed.resize(size);
  return packed;
}

std::string Xz(const std::string& text) {
  std::string packed(lzma_stream_buffer_bound(text.size()), '\0');
  size_t size = 0;
  EXPECT_EQ(lzma_easy_buffer_encode(
                6, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const uint8_t*>(text.data()),
                text.size(), reinterpret_cast<uint8_t*>(packed.data()), &size, packed.size()),
            LZMA_OK);
  packed.resize(size);
  return packed;
}

using Pack = std::string (*)(const std::string&);
constexpr Pack kPacks[] = {Gzip, Zstd, Bzip2, Xz};

// The file's bytes, or the error.
std::string Unpacked(const std::string& bytes, const UnpackLimits& limits = {}) {
  const std::string dir = io::MakeTempDir("unpack-test").value();
  EXPECT_TRUE(io::WriteFileAtomic(dir + "/file", bytes).ok());
  const auto reader = ByteReader::Open(dir + "/file", limits);
  EXPECT_TRUE(io::RemoveAll(dir).ok());
  std::string text;
  char chunk[1000];
  for (;;) {
    const auto got = (*reader)->Read(chunk, sizeof(chunk));
    if (!got.ok()) return "error: " + std::string(Message(got.status()));
    if (*got == 0) return text;
    text.append(chunk, *got);
  }
}

std::string Text() {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i * 7919 % 100'003) + "\n";
  return text;
}

TEST(ByteReaderTest, WhatIsPackedIsUnpackedWhateverItsName) {
  const std::string text = Text();
  EXPECT_EQ(Unpacked(text), text);
  EXPECT_EQ(Unpacked(""), "");
  for (const Pack pack : kPacks) {
    EXPECT_EQ(Unpacked(pack(text)), text);
    // Tools that work in parallel, and `cat`, write several parts.
    EXPECT_EQ(Unpacked(pack(text) + pack("end")), text + "end");
    EXPECT_EQ(Unpacked(pack("")), "");
  }
}

TEST(ByteReaderTest, AFileThatIsCutShortOrDamagedIsRefused) {
  const std::string text = Text();
  for (const Pack pack : kPacks) {
    const std::string packed = pack(text);
    for (const size_t left : {packed.size() - 1, packed.size() / 2, size_t{7}}) {
      EXPECT_EQ(Unpacked(packed.substr(0, left)).find("error: it is cut short"), 0U) << left;
    }
    std::string damaged = packed;
    for (size_t i = 0; i < 8; ++i) damaged[damaged.size() / 2 + i] ^= 0x55;
    EXPECT_EQ(Unpacked(damaged).find("error: "), 0U);
    EXPECT_EQ(Unpacked(packed + "and more").find("error: "), 0U);
  }
}

TEST(ByteReaderTest, AFileThatUnpacksToTooMuchIsRefused) {
  const UnpackLimits limits{.free_bytes = 1000, .max_ratio = 20, .max_bytes = 1 << 20};
  const std::string bomb(500'000, 'x');
  for (const Pack pack : kPacks) {
    EXPECT_NE(Unpacked(pack(bomb), limits).find("too much for a data set"), std::string::npos);
    EXPECT_EQ(Unpacked(pack(std::string(900, 'x')), limits).size(), 900U);
  }
}

}  // namespace
}  // namespace sft::data
