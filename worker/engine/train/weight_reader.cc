#include "worker/engine/train/weight_reader.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <span>

#include "worker/engine/base/error.h"

namespace sft::engine {

using at::Tensor;

namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;  // of one thread at a time

}  // namespace

WeightReader::WeightReader(at::Device device, int64_t buffer_bytes)
    : device_(device), lane_(device, kBuffers) {
  for (Tensor& buffer : buffers_) buffer = PinnedBuffer(buffer_bytes, at::kByte, device);
}

// The device may still be reading the buffers.
WeightReader::~WeightReader() {
  try {
    for (int i = 0; i < kBuffers; ++i) lane_.WaitOnHost(i);
  } catch (const std::exception& error) {  // a lost device: who ran into it has said so
    fmt::print(stderr, "while the weights were read: {}\n", error.what());
  }
}

Tensor WeightReader::Read(const ModelFiles& files, std::string_view name, int64_t first,
                          int64_t count) {
  const TensorInfo& info = files.Info(name);
  if (first < 0 || count < 0 || first + count > info.numel()) {
    throw InternalError("a part that lies outside of " + info.name + " was asked for");
  }
  const auto size = static_cast<int64_t>(c10::elementSize(info.dtype));
  const Tensor bytes = at::empty({count * size}, at::TensorOptions(device_).dtype(at::kByte));
  lane_.Follow();  // its memory may have been the computation's until now
  for (int64_t done = 0; done < bytes.numel(); next_ = (next_ + 1) % kBuffers) {
    const Tensor& buffer = buffers_[next_];
    const int64_t length = std::min(buffer.numel(), bytes.numel() - done);
    lane_.WaitOnHost(next_);
    auto* const to = static_cast<std::byte*>(buffer.mutable_data_ptr());
    const int64_t pieces = (length + kPieceBytes - 1) / kPieceBytes;
    at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
      const int64_t from = begin * kPieceBytes, until = std::min(end * kPieceBytes, length);
      files.ReadBytes(name, first * size + done + from,
                      {to + from, static_cast<size_t>(until - from)});
    });
    lane_.Start(next_, bytes.narrow(0, done, length), buffer.narrow(0, 0, length));
    done += length;
  }
  lane_.Join();
  return bytes.view(info.dtype);
}

}  // namespace sft::engine
