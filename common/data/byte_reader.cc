#include "common/data/byte_reader.h"

#include <bzlib.h>
#include <fmt/format.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <vector>

#include "common/base/bytes.h"

namespace sft::data {
namespace {

constexpr size_t kInputBytes = 256 << 10;

class PlainReader : public ByteReader {
 public:
  PlainReader(io::UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  absl::StatusOr<size_t> Read(char* data, size_t size) override {
    SFT_ASSIGN_OR_RETURN(const size_t got, io::ReadAt(fd_.get(), offset_, data, size, path_));
    offset_ += static_cast<int64_t>(got);
    return got;
  }

 private:
  io::UniqueFd fd_;
  std::string path_;
  int64_t offset_ = 0;
};

// What a decoder reads from and writes to; it moves both on.
struct Window {
  const char* in;
  size_t in_size;
  char* out;
  size_t out_size;
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Called at the start of each frame: a packed file may be several, one after the other.
  virtual bool Start() = 0;
  enum class Step { kMore, kEnd, kBroken };
  // `last`: no input follows that in the window.
  virtual Step Run(Window& window, bool last) = 0;
};

class GzipDecoder : public Decoder {
 public:
  GzipDecoder() { ok_ = inflateInit2(&stream_, 15 + 16) == Z_OK; }
  ~GzipDecoder() override { inflateEnd(&stream_); }
  bool Start() override { return ok_ && inflateReset(&stream_) == Z_OK; }
  Step Run(Window& window, bool) override {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(window.in));
    stream_.avail_in = static_cast<uInt>(window.in_size);
    stream_.next_out = reinterpret_cast<Bytef*>(window.out);
    stream_.avail_out = static_cast<uInt>(window.out_size);
    const int result = inflate(&stream_, Z_NO_FLUSH);
    window = {reinterpret_cast<const char*>(stream_.next_in), stream_.avail_in,
              reinterpret_cast<char*>(stream_.next_out), stream_.avail_out};
    if (result == Z_STREAM_END) return Step::kEnd;
    return result == Z_OK || result == Z_BUF_ERROR ? Step::kMore : Step::kBroken;
  }

 private:
  z_stream stream_ = {};
  bool ok_ = false;
};

class ZstdDecoder : public Decoder {
 public:
  ~ZstdDecoder() override { ZSTD_freeDStream(stream_); }
  bool Start() override {
    return stream_ != nullptr && ZSTD_isError(ZSTD_initDStream(stream_)) == 0;
  }
  Step Run(Window& window, bool) override {
    ZSTD_inBuffer in = {window.in, window.in_size, 0};
    ZSTD_outBuffer out = {window.out, window.out_size, 0};
    const size_t result = ZSTD_decompressStream(stream_, &out, &in);
    if (ZSTD_isError(result) != 0) return Step::kBroken;
    window = {window.in + in.pos, window.in_size - in.pos, window.out + out.pos,
              window.out_size - out.pos};
    return result == 0 ? Step::kEnd : Step::kMore;
  }

 private:
  ZSTD_DStream* const stream_ = ZSTD_createDStream();
};

class Bzip2Decoder : public Decoder {
 public:
  ~Bzip2Decoder() override { BZ2_bzDecompressEnd(&stream_); }
  bool Start() override {
    BZ2_bzDecompressEnd(&stream_);
    stream_ = {};
    return BZ2_bzDecompressInit(&stream_, /*verbosity=*/0, /*small=*/0) == BZ_OK;
  }
  Step Run(Window& window, bool) override {
    stream_.next_in = const_cast<char*>(window.in);
    stream_.avail_in = static_cast<unsigned>(window.in_size);
    stream_.next_out = window.out;
    stream_.avail_out = static_cast<unsigned>(window.out_size);
    const int result = BZ2_bzDecompress(&stream_);
    window = {stream_.next_in, stream_.avail_in, stream_.next_out, stream_.avail_out};
    if (result == BZ_STREAM_END) return Step::kEnd;
    return result == BZ_OK ? Step::kMore : Step::kBroken;
  }

 private:
  bz_stream stream_ = {};
};

class XzDecoder : public Decoder {
 public:
  ~XzDecoder() override { lzma_end(&stream_); }
  bool Start() override {
    constexpr uint64_t kMemory = 256 << 20;  // `xz -9` asks for 65 MiB
    return lzma_stream_decoder(&stream_, kMemory, LZMA_CONCATENATED) == LZMA_OK;
  }
  Step Run(Window& window, bool last) override {
    stream_.next_in = reinterpret_cast<const uint8_t*>(window.in);
    stream_.avail_in = window.in_size;
    stream_.next_out = reinterpret_cast<uint8_t*>(window.out);
    stream_.avail_out = window.out_size;
    const lzma_ret result = lzma_code(&stream_, last ? LZMA_FINISH : LZMA_RUN);
    window = {reinterpret_cast<const char*>(stream_.next_in), stream_.avail_in,
              reinterpret_cast<char*>(stream_.next_out), stream_.avail_out};
    if (result == LZMA_STREAM_END) return Step::kEnd;
    return result == LZMA_OK || result == LZMA_BUF_ERROR ? Step::kMore : Step::kBroken;
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
};

class PackedReader : public ByteReader {
 public:
  PackedReader(std::unique_ptr<ByteReader> file, std::unique_ptr<Decoder> decoder,
               const UnpackLimits& limits)
      : file_(std::move(file)), decoder_(std::move(decoder)), limits_(limits), in_(kInputBytes) {}

  absl::StatusOr<size_t> Read(char* data, size_t size) override {
    for (;;) {
      if (begin_ == end_ && !last_) SFT_RETURN_IF_ERROR(Fill());
      if (begin_ == end_ && last_ && !in_frame_) return size_t{0};
      if (!in_frame_ && !decoder_->Start()) return ResourceExhausted("no memory to unpack with");
      in_frame_ = true;
      Window window = {in_.data() + begin_, end_ - begin_, data, size};
      const Decoder::Step step = decoder_->Run(window, last_);
      const size_t used = end_ - begin_ - window.in_size, made = size - window.out_size;
      if (step == Decoder::Step::kBroken) {
        return InvalidArgument(
            fmt::format("its compressed data is damaged after {} unpacked", BytesText(made_)));
      }
      begin_ += used;
      taken_ += static_cast<int64_t>(used);
      made_ += static_cast<int64_t>(made);
      in_frame_ = step != Decoder::Step::kEnd;
      SFT_RETURN_IF_ERROR(CheckSize());
      if (made > 0) return made;
      if (in_frame_ && used == 0 && last_) {
        return InvalidArgument("it is cut short: its compressed data has no end");
      }
    }
  }

 private:
  absl::Status Fill() {
    SFT_ASSIGN_OR_RETURN(end_, file_->Read(in_.data(), in_.size()));
    begin_ = 0;
    last_ = end_ == 0;
    return absl::OkStatus();
  }

  absl::Status CheckSize() const {
    const int64_t most =
        std::min(limits_.max_bytes, std::max(limits_.free_bytes, taken_ * limits_.max_ratio));
    if (made_ <= most) return absl::OkStatus();
    return InvalidArgument(fmt::format(
        "{} of it unpack to more than {}, too much for a data set; give the file unpacked",
        BytesText(taken_), BytesText(most)));
  }

  std::unique_ptr<ByteReader> file_;
  std::unique_ptr<Decoder> decoder_;
  const UnpackLimits limits_;
  std::vector<char> in_;
  size_t begin_ = 0, end_ = 0;
  bool last_ = false, in_frame_ = false;
  int64_t taken_ = 0, made_ = 0;
};

std::unique_ptr<Decoder> MakeDecoder(Compression compression) {
  switch (compression) {
    case Compression::kGzip:
      return std::make_unique<GzipDecoder>();
    case Compression::kZstd:
      return std::make_unique<ZstdDecoder>();
    case Compression::kBzip2:
      return std::make_unique<Bzip2Decoder>();
    case Compression::kXz:
      return std::make_unique<XzDecoder>();
    case Compression::kNone:
      break;
  }
  return nullptr;
}

}  // namespace

Compression CompressionOf(std::string_view head) {
  using namespace std::string_view_literals;
  if (head.starts_with("\x1f\x8b"sv)) return Compression::kGzip;
  if (head.starts_with("\x28\xb5\x2f\xfd"sv)) return Compression::kZstd;
  if (head.starts_with("BZh"sv) && head.size() > 3 && head[3] >= '1' && head[3] <= '9') {
    return Compression::kBzip2;
  }
  if (head.starts_with("\xfd\x37zXZ\0"sv)) return Compression::kXz;
  return Compression::kNone;
}

absl::StatusOr<std::unique_ptr<ByteReader>> ByteReader::Open(const std::string& path,
                                                             const UnpackLimits& limits) {
  SFT_ASSIGN_OR_RETURN(io::UniqueFd fd, io::OpenForRead(path));
  return Open(std::move(fd), path, limits);
}

absl::StatusOr<std::unique_ptr<ByteReader>> ByteReader::Open(io::UniqueFd fd,
                                                             const std::string& path,
                                                             const UnpackLimits& limits) {
  char head[8];
  SFT_ASSIGN_OR_RETURN(const size_t got, io::ReadAt(fd.get(), 0, head, sizeof(head), path));
  std::unique_ptr<Decoder> decoder = MakeDecoder(CompressionOf({head, got}));
  std::unique_ptr<ByteReader> file = std::make_unique<PlainReader>(std::move(fd), path);
  if (decoder == nullptr) return file;
  return std::make_unique<PackedReader>(std::move(file), std::move(decoder), limits);
}

}  // namespace sft::data
