#include "worker/engine/export/gguf_file.h"

#include <c10/util/Half.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/disk.h"

namespace sft::engine {
namespace {

using at::Tensor;

constexpr uint64_t kAlignment = 32;
constexpr int64_t kQ8Block = 32;
constexpr uint64_t kQ8BlockBytes = 2 + kQ8Block;
// Types of a value of metadata, as the format numbers them.
constexpr uint32_t kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9;

template <typename T>
void Append(T value, std::string& to) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void AppendText(std::string_view text, std::string& to) {
  Append<uint64_t>(text.size(), to);
  to.append(text);
}

int64_t Elements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

uint64_t BytesOf(const GgufWriter::TensorPlan& tensor) {
  const auto count = static_cast<uint64_t>(Elements(tensor.shape));
  switch (tensor.type) {
    case GgmlType::kF32:
      return count * 4;
    case GgmlType::kBf16:
      return count * 2;
    case GgmlType::kQ8_0:
      return count / kQ8Block * kQ8BlockBytes;
  }
  return 0;
}

uint64_t Aligned(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void GgufKeys::Begin(std::string_view key, uint32_t type) {
  AppendText(key, bytes_);
  Append(type, bytes_);
  ++count_;
}

void GgufKeys::Set(std::string_view key, std::string_view value) {
  Begin(key, kString);
  AppendText(value, bytes_);
}

void GgufKeys::SetInt(std::string_view key, uint32_t value) {
  Begin(key, kUint32);
  Append(value, bytes_);
}

void GgufKeys::SetFloat(std::string_view key, float value) {
  Begin(key, kFloat32);
  Append(value, bytes_);
}

void GgufKeys::SetBool(std::string_view key, bool value) {
  Begin(key, kBool);
  Append<uint8_t>(value ? 1 : 0, bytes_);
}

void GgufKeys::SetTexts(std::string_view key, const std::vector<std::string>& values) {
  Begin(key, kArray);
  Append(kString, bytes_);
  Append<uint64_t>(values.size(), bytes_);
  for (const std::string& value : values) AppendText(value, bytes_);
}

void GgufKeys::SetInts(std::string_view key, const std::vector<int32_t>& values) {
  Begin(key, kArray);
  Append(kInt32, bytes_);
  Append<uint64_t>(values.size(), bytes_);
  for (const int32_t value : values) Append(value, bytes_);
}

void GgufKeys::SetBools(std::string_view key, const std::vector<bool>& values) {
  Begin(key, kArray);
  Append(kBool, bytes_);
  Append<uint64_t>(values.size(), bytes_);
  for (const bool value : values) Append<uint8_t>(value ? 1 : 0, bytes_);
}

void GgufKeys::SetFloats(std::string_view key, const std::vector<float>& values) {
  Begin(key, kArray);
  Append(kFloat32, bytes_);
  Append<uint64_t>(values.size(), bytes_);
  for (const float value : values) Append(value, bytes_);
}

bool FitsQ8(const std::vector<int64_t>& shape) {
  return shape.size() > 1 && shape.back() % kQ8Block == 0;
}

std::string ToQ8(const Tensor& values) {
  const Tensor flat = values.to(at::kFloat).contiguous().flatten();
  const float* from = flat.const_data_ptr<float>();
  const int64_t blocks = flat.numel() / kQ8Block;
  std::string bytes(static_cast<size_t>(blocks) * kQ8BlockBytes, '\0');
  char* to = bytes.data();
  for (int64_t block = 0; block < blocks; ++block, from += kQ8Block) {
    float largest = 0;
    for (int64_t i = 0; i < kQ8Block; ++i) largest = std::max(largest, std::fabs(from[i]));
    const float scale = largest / 127.0f;
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    const c10::Half stored(scale);
    std::memcpy(to, &stored.x, 2);
    to += 2;
    for (int64_t i = 0; i < kQ8Block; ++i) {
      *to++ = static_cast<char>(static_cast<int8_t>(std::round(from[i] * inverse)));
    }
  }
  return bytes;
}

GgufWriter::GgufWriter(std::filesystem::path path, const GgufKeys& keys,
                       const std::vector<TensorPlan>& tensors)
    : path_(std::move(path)) {
  std::string head = "GGUF";
  Append<uint32_t>(3, head);
  Append<uint64_t>(tensors.size(), head);
  Append<uint64_t>(keys.count(), head);
  head += keys.bytes();
  uint64_t offset = 0;
  for (const TensorPlan& tensor : tensors) {
    AppendText(tensor.name, head);
    Append(static_cast<uint32_t>(tensor.shape.size()), head);
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) {
      Append(static_cast<uint64_t>(*size), head);
    }
    Append(static_cast<uint32_t>(tensor.type), head);
    Append(offset, head);
    if (!entries_.emplace(tensor.name, Entry{tensor, offset}).second) {
      throw InternalError(fmt::format("tensor \"{}\" is given twice", tensor.name));
    }
    offset = Aligned(offset + BytesOf(tensor));
  }
  head.resize(Aligned(head.size()), '\0');
  for (auto& [name, entry] : entries_) entry.offset += head.size();
  size_ = head.size() + offset;
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) ThrowDiskError("create", path_, errno, size_);
  const int reserved = ::posix_fallocate(fd_, 0, static_cast<off_t>(size_));
  const bool unknown = reserved == EOPNOTSUPP || reserved == EINVAL;
  if (reserved != 0 && !unknown) {
    ::close(fd_);
    ::unlink(path_.c_str());
    ThrowDiskError("write", path_, reserved, size_);
  }
  WriteAt(head.data(), head.size(), 0);
}

GgufWriter::~GgufWriter() {
  if (fd_ >= 0) ::close(fd_);
  if (!committed_) ::unlink(path_.c_str());
}

void GgufWriter::WriteAt(const void* data, uint64_t size, uint64_t offset) {
  const char* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::pwrite(fd_, from, size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) ThrowDiskError("write", path_, written < 0 ? errno : EIO, size_);
    from += written;
    offset += static_cast<uint64_t>(written);
    size -= static_cast<uint64_t>(written);
  }
}

void GgufWriter::Write(std::string_view name, const Tensor& tensor) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw InternalError(fmt::format("tensor \"{}\" is not part of the file", name));
  }
  Entry& entry = found->second;
  if (entry.written || tensor.sizes().vec() != entry.plan.shape) {
    throw InternalError(fmt::format("tensor \"{}\" is written twice or has another shape", name));
  }
  if (entry.plan.type == GgmlType::kQ8_0) {
    const std::string bytes = ToQ8(tensor);
    WriteAt(bytes.data(), bytes.size(), entry.offset);
  } else {
    const at::ScalarType type = entry.plan.type == GgmlType::kBf16 ? at::kBFloat16 : at::kFloat;
    const Tensor values = tensor.to(type).contiguous();
    WriteAt(values.const_data_ptr(), values.nbytes(), entry.offset);
  }
  entry.written = true;
}

void GgufWriter::Commit() {
  for (const auto& [name, entry] : entries_) {
    if (!entry.written) throw InternalError(fmt::format("tensor \"{}\" was not written", name));
  }
  // Where no space was reserved the padding at the end is missing.
  if (::ftruncate(fd_, static_cast<off_t>(size_)) != 0 || ::fsync(fd_) != 0) {
    ThrowDiskError("write", path_, errno, size_);
  }
  committed_ = true;
}

}  // namespace sft::engine
