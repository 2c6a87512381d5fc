#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sft::engine {

// Types of tensors, numbered as ggml numbers them.
enum class GgmlType : uint32_t { kF32 = 0, kQ8_0 = 8, kBf16 = 30 };

// Values of the keys before the tensors, encoded as they are added. Any key once.
class GgufKeys {
 public:
  void Set(std::string_view key, std::string_view value);
  void SetInt(std::string_view key, uint32_t value);
  void SetFloat(std::string_view key, float value);
  void SetBool(std::string_view key, bool value);
  void SetTexts(std::string_view key, const std::vector<std::string>& values);
  void SetInts(std::string_view key, const std::vector<int32_t>& values);
  void SetBools(std::string_view key, const std::vector<bool>& values);
  void SetFloats(std::string_view key, const std::vector<float>& values);

  uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void Begin(std::string_view key, uint32_t type);

  std::string bytes_;
  uint64_t count_ = 0;
};

// Writes a GGUF file (version 3), the format of llama.cpp. All tensors are known by shape
// beforehand and arrive one at a time, in any order. Without Commit the destructor removes the
// file. Throws InfrastructureError where the disk fails.
class GgufWriter {
 public:
  struct TensorPlan {
    std::string name;
    std::vector<int64_t> shape;  // as LibTorch has it; the file has it reversed
    GgmlType type = GgmlType::kF32;
  };

  // Reserves the file's space.
  GgufWriter(std::filesystem::path path, const GgufKeys& keys,
             const std::vector<TensorPlan>& tensors);
  ~GgufWriter();
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  // The whole tensor, on a CPU, of any type and stride.
  void Write(std::string_view name, const at::Tensor& tensor);
  // Throws InternalError naming a tensor that was not written.
  void Commit();

 private:
  struct Entry {
    TensorPlan plan;
    uint64_t offset = 0;  // in the file
    bool written = false;
  };
  void WriteAt(const void* data, uint64_t size, uint64_t offset);

  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
  std::map<std::string, Entry, std::less<>> entries_;
  bool committed_ = false;
};

// Rows of a whole number of 32 elements fit Q8_0.
bool FitsQ8(const std::vector<int64_t>& shape);

// The bytes of fp32 values in Q8_0: of each 32 their scale, fp16, the largest of them over 127, and
// the values over it, rounded, as ggml's reference does.
std::string ToQ8(const at::Tensor& values);

}  // namespace sft::engine
