#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace sft::data {

// A gzip file (RFC 1952) of parts that several processes have packed, one behind the other. Unlike
// gzip files put together it has one member, which every reader takes.

// What a text is checked by.
struct TextSum {
  uint32_t crc32 = 0;  // as of gzip
  int64_t bytes = 0;

  static TextSum Of(std::string_view text);
  // The sum of this text with that of `next` behind it.
  TextSum Then(const TextSum& next) const;
};

// Packs a part: blocks of DEFLATE that end at a byte, of which none is the last one. Gives them to
// `sink` as they are made. Thread-compatible.
class PartPacker {
 public:
  using Sink = std::function<void(std::string_view packed)>;

  explicit PartPacker(Sink sink);
  ~PartPacker();
  PartPacker(const PartPacker&) = delete;
  PartPacker& operator=(const PartPacker&) = delete;

  void Add(std::string_view text);
  // Once, behind the last Add.
  void Finish();
  // The sum of all text that has been added.
  const TextSum& sum() const { return sum_; }
  // That the sink has been given.
  int64_t packed_bytes() const { return packed_bytes_; }

 private:
  struct Stream;
  void Deflate(std::string_view text, int flush);

  const Sink sink_;
  const std::unique_ptr<Stream> stream_;
  TextSum sum_;
  int64_t packed_bytes_ = 0;
};

// What is around the parts. Thread-compatible.
class GzipFrame {
 public:
  // The file's first bytes, which unpack to `text`.
  std::string Begin(std::string_view text);
  // The sum of each part, in their order.
  void Add(const TextSum& part) { sum_ = sum_.Then(part); }
  // Its last ones.
  std::string End(std::string_view text);

 private:
  std::string Packed(std::string_view text);

  TextSum sum_;
};

// What Chrome's trace events of several processes have around them, where each has ",\n" before it.
inline constexpr std::string_view kTraceBegin =
    R"({"displayTimeUnit":"ms","traceEvents":[{"ph":"M","name":"process_sort_index",)"
    R"("pid":1,"tid":0,"args":{"sort_index":0}})";
inline constexpr std::string_view kTraceEnd = "\n]}\n";
// At most so many bytes of what one of them adds, packed.
inline constexpr int64_t kMostTraceBytes = 32 << 20;

}  // namespace sft::data
