// Packed pages and buffers are unpacked to exactly the size that their file says, or not at all.

#include "common/columnar/page_codec.h"

#include <gtest/gtest.h>
#include <lz4.h>
#include <lz4frame.h>
#include <snappy-c.h>

#include <functional>

namespace sft::columnar {
namespace {

// Repeats and does not: literals, copies that overlap, and copies from far behind.
std::string Text() {
  std::string text(500, 'a');
  for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + i * i % 23);
  return text + text.substr(300, 900);
}

std::string Snappy(std::string_view text) {
  std::string packed(snappy_max_compressed_length(text.size()), '\0');
  size_t size = packed.size();
  EXPECT_EQ(snappy_compress(text.data(), text.size(), packed.data(), &size), SNAPPY_OK);
  return packed.substr(0, size);
}

std::string Lz4Block(std::string_view text) {
  const int size = static_cast<int>(text.size());
  std::string packed(static_cast<size_t>(LZ4_compressBound(size)), '\0');
  const int made =
      LZ4_compress_default(text.data(), packed.data(), size, static_cast<int>(packed.size()));
  EXPECT_GT(made, 0);
  return packed.substr(0, static_cast<size_t>(made));
}

std::string BigEndian(size_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

// Two blocks, each behind its sizes.
std::string HadoopLz4(std::string_view text) {
  std::string packed;
  for (const std::string_view part : {text.substr(0, 1000), text.substr(1000)}) {
    const std::string block = Lz4Block(part);
    packed += BigEndian(part.size()) + BigEndian(block.size()) + block;
  }
  return packed;
}

std::string Lz4Frame(std::string_view text) {
  LZ4F_preferences_t preferences = {};
  preferences.frameInfo.contentChecksumFlag = LZ4F_contentChecksumEnabled;
  std::string packed(LZ4F_compressFrameBound(text.size(), &preferences), '\0');
  const size_t size =
      LZ4F_compressFrame(packed.data(), packed.size(), text.data(), text.size(), &preferences);
  EXPECT_FALSE(LZ4F_isError(size));
  return packed.substr(0, size);
}

using Unpacker = std::function<bool(std::string_view, std::string&)>;

Unpacker Page(Codec codec) {
  return [codec](std::string_view in, std::string& out) { return UnpackPage(codec, in, out); };
}

struct Case {
  const char* name;
  std::string (*pack)(std::string_view);
  Unpacker unpack;
};

std::vector<Case> Cases() {
  return {{"snappy", Snappy, Page(Codec::kSnappy)},
          {"lz4 raw", Lz4Block, Page(Codec::kLz4Raw)},
          {"lz4 of Hadoop", HadoopLz4, Page(Codec::kLz4)},
          {"lz4 without frames", Lz4Block, Page(Codec::kLz4)},
          {"lz4 frame", Lz4Frame, UnpackLz4Frame}};
}

TEST(PageCodecTest, GivesWhatWasPacked) {
  const std::string text = Text();
  for (const Case& one : Cases()) {
    std::string out(text.size(), '\0');
    EXPECT_TRUE(one.unpack(one.pack(text), out)) << one.name;
    EXPECT_EQ(out, text) << one.name;
  }
}

TEST(PageCodecTest, MoreOrLessThanThePageSaysIsRefused) {
  const std::string text = Text();
  for (const Case& one : Cases()) {
    const std::string packed = one.pack(text);
    for (const size_t size : {size_t{0}, size_t{1}, text.size() - 1, text.size() + 1}) {
      std::string out(size, '\0');
      EXPECT_FALSE(one.unpack(packed, out)) << one.name << ": " << size;
      EXPECT_EQ(out.size(), size);
    }
    for (size_t cut = 0; cut < packed.size(); ++cut) {
      std::string out(text.size(), '\0');
      EXPECT_FALSE(one.unpack(packed.substr(0, cut), out)) << one.name << ": " << cut;
    }
  }
}

TEST(PageCodecTest, DamagedBytesStayInside) {
  const std::string text = Text();
  for (const Case& one : Cases()) {
    const std::string packed = one.pack(text);
    for (size_t i = 0; i < packed.size(); ++i) {
      for (const char change : {'\x01', '\x40', '\xff'}) {
        std::string bytes = packed, out(text.size(), '\0');
        bytes[i] ^= change;
        one.unpack(bytes, out);  // either, but nothing beyond `out`
        EXPECT_EQ(out.size(), text.size());
      }
    }
  }
}

TEST(PageCodecTest, ASizeThatNoPageHasIsRefused) {
  // Hadoop's sizes: more than the page holds, and more than there is.
  for (const std::string& sizes :
       {BigEndian(~size_t{0}) + BigEndian(1) + "x", BigEndian(4) + BigEndian(~size_t{0}) + "x",
        std::string("\0\0\0", 3)}) {
    std::string out(4, '\0');
    EXPECT_FALSE(UnpackPage(Codec::kLz4, sizes, out));
  }
}

}  // namespace
}  // namespace sft::columnar
