#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/io/sha256.h"
#include "worker/engine/checkpoint/safetensors.h"

namespace sft::engine {

// A tensor and its name in a file.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Writes one safetensors file whose tensors are known by shape beforehand and arrive in any order,
// so that a model larger than memory passes through tensor by tensor. Data starts at a multiple of
// 64 bytes and tensors are ordered by the size of their elements, so all of them are aligned. The
// file appears under its name only by Commit: a temporary file beside it is written, synced and
// renamed; without Commit the destructor removes it.
//
// Every failure to write throws InfrastructureError; a full disk says how much was needed and how
// much is free. Thread-compatible.
class SafetensorsWriter {
 public:
  // Reserves the file's space where the file system can. `infos` gives name, dtype and shape; their
  // offsets are assigned here. "format": "pt" is added to the metadata, as transformers asks for
  // it. `hashed`: sha256() is wanted, for which tensors have to be written in the file's order.
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorInfo> infos,
                    std::map<std::string, std::string> metadata = {}, bool hashed = false);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The whole tensor, of any device and stride; converted to the declared type if it has another.
  // Throws InternalError for an unknown name, a second write or another shape.
  void Write(std::string_view name, const at::Tensor& tensor);

  // Elements [first, first + part.numel()) of the flattened tensor: for shards that arrive apart.
  // The parts of a tensor must not overlap.
  void WriteRange(std::string_view name, int64_t first, const at::Tensor& part);

  // Throws InternalError naming the tensors not fully written.
  void Commit();

  // The tensors' names in the order in which they lie in the file.
  const std::vector<std::string>& order() const { return order_; }
  // Bytes of the whole file.
  int64_t size() const { return static_cast<int64_t>(data_begin_ + total_bytes_); }
  // Hash of the written file. Call it once, after Commit, on a writer that hashes.
  std::string Sha256() { return hash_.value().FinishHex(); }

 private:
  struct Entry {
    TensorInfo info;
    int64_t written = 0;
  };
  Entry& Find(std::string_view name);
  void Discard();
  void Put(Entry& entry, int64_t first, const at::Tensor& part);
  void WriteAt(const void* data, uint64_t size, uint64_t offset);

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_ = -1;
  uint64_t data_begin_ = 0;
  uint64_t total_bytes_ = 0;
  std::map<std::string, Entry, std::less<>> entries_;
  std::vector<std::string> order_;
  std::optional<io::Sha256> hash_;
  uint64_t hashed_ = 0;  // bytes of the file
};

// Writes a whole file at once.
void WriteSafetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                      std::map<std::string, std::string> metadata = {});

// A directory written under a temporary name beside `target` and put in its place by Commit, so
// that a reader sees the old one, none, or the complete new one. The destructor removes what was
// not committed. Throws InfrastructureError.
class StagedDirectory {
 public:
  explicit StagedDirectory(std::filesystem::path target);
  ~StagedDirectory();
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;

  const std::filesystem::path& path() const { return staging_; }
  // Syncs the files, then swaps the directory in.
  void Commit();

 private:
  std::filesystem::path target_;
  std::filesystem::path staging_;
  bool committed_ = false;
};

// Writes `text` to `path`, atomically and synced. Throws InfrastructureError.
void WriteTextFile(const std::filesystem::path& path, std::string_view text);

}  // namespace sft::engine
