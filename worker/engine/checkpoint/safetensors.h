#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/io/file.h"

// Reading the safetensors format: 8 bytes little-endian header length, a JSON header
// {"name": {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}, "__metadata__": {..}},
// then the tensors' bytes, which fill the rest of the file without gaps.
// https://github.com/huggingface/safetensors

namespace sft::engine {

// One tensor of a file's header, or of a file to be written (begin and end are then assigned).
struct TensorInfo {
  std::string name;
  at::ScalarType dtype = at::ScalarType::Float;
  std::vector<int64_t> shape;
  // Bytes of the tensor, counted from the start of the data that follows the header.
  uint64_t begin = 0;
  uint64_t end = 0;

  int64_t numel() const;
  uint64_t bytes() const { return end - begin; }
};

// "BF16" for at::kBFloat16 and so on; throws InternalError for a type the format lacks.
std::string_view SafetensorsDtype(at::ScalarType dtype);

// One open file, memory-mapped read-only. Immutable and thread-safe; shared by the tensors made
// from it, so the mapping lives as long as the last of them.
class SafetensorsFile : public std::enable_shared_from_this<SafetensorsFile> {
 public:
  // Reads and checks the header. Throws UserError naming the file and what to do: missing,
  // truncated, header too long or not JSON, unknown type, offsets that overlap, leave gaps or pass
  // the end.
  static std::shared_ptr<const SafetensorsFile> Open(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, TensorInfo, std::less<>>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool Contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  // Throws UserError when the file has no such tensor.
  const TensorInfo& Info(std::string_view name) const;

  // The tensor without a copy: pages are read from the file when they are touched. It must not be
  // written to (the mapping is read-only: the process would die). A tensor whose bytes are not
  // aligned for its type is copied.
  at::Tensor View(std::string_view name) const;

  // Elements [first, first + count) of the flattened tensor, 1-D, without a copy.
  at::Tensor ViewRange(std::string_view name, int64_t first, int64_t count) const;

  // Copies bytes of the tensor, from `first` on, into `to`, not through the mapping: where the file
  // cannot be read this throws, UserError when it has become shorter, else InfrastructureError.
  void ReadBytes(std::string_view name, int64_t first, std::span<std::byte> to) const;

  // Tells the kernel that the tensor's pages are not needed any more (they count as this process's
  // memory while mapped and touched). Views stay valid; touching them reads the file again.
  void DropPages(std::string_view name) const;

 private:
  struct Passkey {
    explicit Passkey() = default;
  };

 public:
  // For Open, which owns the only key.
  SafetensorsFile(Passkey, std::filesystem::path path, io::UniqueFd fd, const std::byte* map,
                  uint64_t size);

 private:
  void ParseHeader();
  void CheckLayout(uint64_t data_bytes) const;

  std::filesystem::path path_;
  io::UniqueFd fd_;
  const std::byte* map_ = nullptr;
  uint64_t size_ = 0;
  uint64_t data_begin_ = 0;
  std::map<std::string, TensorInfo, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

// The weights of a Hugging Face model directory: model.safetensors, or the shards listed in
// model.safetensors.index.json. Immutable and thread-safe.
class ModelFiles {
 public:
  // Opens every shard and checks that the index and the shards agree. Throws UserError: directory
  // or weights missing, only pickled weights (never read), a shard missing or broken, a tensor that
  // the index places in a shard that does not hold it, or that two shards hold.
  static ModelFiles Open(const std::filesystem::path& dir);

  const std::filesystem::path& dir() const { return dir_; }
  std::vector<std::string> Names() const;
  bool Contains(std::string_view name) const { return place_.find(name) != place_.end(); }
  const TensorInfo& Info(std::string_view name) const { return File(name).Info(name); }
  at::Tensor View(std::string_view name) const { return File(name).View(name); }
  at::Tensor ViewRange(std::string_view name, int64_t first, int64_t count) const {
    return File(name).ViewRange(name, first, count);
  }
  void DropPages(std::string_view name) const { File(name).DropPages(name); }
  // Bytes of all tensors.
  uint64_t TotalBytes() const;
  // The file that holds the tensor. Throws UserError naming the directory and the nearest existing
  // name.
  const SafetensorsFile& File(std::string_view name) const;

 private:
  // Throws UserError for a tensor that two files hold.
  void CheckOnce() const;

  std::filesystem::path dir_;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::map<std::string, size_t, std::less<>> place_;
};

}  // namespace sft::engine
