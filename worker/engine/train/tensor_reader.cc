#include "worker/engine/train/tensor_reader.h"

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
constexpr int64_t kConvertedElements = int64_t{1} << 26;

}  // namespace

TensorReader::TensorReader(at::Device device, int64_t buffer_bytes)
    : device_(device), lane_(device, kBuffers) {
  if (device.is_cpu()) return;
  for (Tensor& buffer : buffers_) buffer = PinnedBuffer(buffer_bytes, at::kByte, device);
}

// The device may still be reading the buffers.
TensorReader::~TensorReader() {
  try {
    for (int i = 0; i < kBuffers; ++i) lane_.WaitOnHost(i);
  } catch (const std::exception& error) {  // a lost device: who ran into it has said so
    fmt::print(stderr, "while tensors were read: {}\n", error.what());
  }
}

void TensorReader::ReadBytes(const Source& source, std::byte* to, int64_t bytes) {
  const int64_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
    const int64_t from = begin * kPieceBytes, until = std::min(end * kPieceBytes, bytes);
    source.file.ReadBytes(source.name, source.first + from,
                          {to + from, static_cast<size_t>(until - from)});
  });
}

void TensorReader::Send(const Source& source, const Tensor& to) {
  lane_.Follow();  // its memory may have been the computation's until now
  for (int64_t done = 0; done < to.numel(); next_ = (next_ + 1) % kBuffers) {
    const Tensor& buffer = buffers_[next_];
    const int64_t length = std::min(buffer.numel(), to.numel() - done);
    lane_.WaitOnHost(next_);
    ReadBytes({source.file, source.name, source.first + done},
              static_cast<std::byte*>(buffer.mutable_data_ptr()), length);
    lane_.Start(next_, to.narrow(0, done, length), buffer.narrow(0, 0, length));
    done += length;
  }
  lane_.Join();
}

void TensorReader::Read(const SafetensorsFile& file, std::string_view name, int64_t first,
                        const Tensor& to) {
  const TensorInfo& info = file.Info(name);
  const int64_t count = to.numel();
  if (first < 0 || first + count > info.numel()) {
    throw InternalError("a part that lies outside of " + info.name + " was asked for");
  }
  if (to.scalar_type() != info.dtype) {
    for (int64_t done = 0; done < count; done += kConvertedElements) {
      const int64_t part = std::min(kConvertedElements, count - done);
      const Tensor stored = at::empty({part}, at::TensorOptions(to.device()).dtype(info.dtype));
      Read(file, name, first + done, stored);
      to.view({-1}).narrow(0, done, part).copy_(stored);
    }
    return;
  }
  const Source source{file, name, first * static_cast<int64_t>(c10::elementSize(info.dtype))};
  if (to.is_cpu()) {
    ReadBytes(source, static_cast<std::byte*>(to.mutable_data_ptr()),
              static_cast<int64_t>(to.nbytes()));
  } else {
    Send(source, to.view({-1}).view(at::kByte));
  }
}

Tensor TensorReader::Read(const SafetensorsFile& file, std::string_view name, int64_t first,
                          int64_t count) {
  if (count < 0) throw InternalError("a part of negative size was asked for");
  const Tensor to = at::empty({count}, at::TensorOptions(device_).dtype(file.Info(name).dtype));
  Read(file, name, first, to);
  return to;
}

}  // namespace sft::engine
