#include "worker/engine/train/shard.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/io/file.h"
#include "common/io/host_memory.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/disk.h"
#include "worker/engine/kernels/host_memory.h"

namespace sft::engine {

using at::Tensor;

namespace {

// Of the memory that is available, for copies of the states.
constexpr double kHostShare = 0.8;

Tensor AsBytes(const Tensor& tensor) { return tensor.view({-1}).view(at::kByte); }

void CheckRuns(const std::atomic<bool>& cancelled) {
  if (cancelled) throw InfrastructureError("the checkpoint was given up: the run ends");
}

}  // namespace

ShardWriter::ShardWriter(at::Device device, int ranks_of_node)
    : device_(device), ranks_of_node_(ranks_of_node), lane_(device, kSlots) {}

void ShardWriter::Begin(std::vector<NamedTensor> tensors) {
  tensors_.clear();
  for (NamedTensor& named : tensors) tensors_.emplace(named.name, std::move(named.tensor));
  if (!device_.is_cpu() && slots_.empty()) {
    for (int i = 0; i < kSlots; ++i) {
      slots_.push_back(PinnedBuffer(kPieceBytes, at::kByte, device_));
    }
  }
  lane_.Follow();
  const MutexLock lock(mutex_);
  copied_ = false;
}

void ShardWriter::SetCopied() {
  const MutexLock lock(mutex_);
  copied_ = true;
  changed_.NotifyAll();
}

void ShardWriter::WaitCopied() {
  const MutexLock lock(mutex_);
  while (!copied_) changed_.Wait(mutex_);
}

bool ShardWriter::FitsHost() const {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) bytes += static_cast<int64_t>(tensor.nbytes());
  const auto available = io::AvailableMemory();
  if (!available.ok()) return false;
  return static_cast<double>(bytes) < kHostShare * static_cast<double>(*available) / ranks_of_node_;
}

void ShardWriter::ToHost(const Tensor& from, const Tensor& to) {
  if (from.is_cpu()) {
    // Not copy_: its threads are the training's.
    std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes());
    return;
  }
  const Tensor source = AsBytes(from), target = AsBytes(to);
  const int64_t bytes = source.numel(), pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  const auto size = [&](int64_t i) { return std::min(kPieceBytes, bytes - i * kPieceBytes); };
  const auto start = [&](int64_t i) {
    if (i >= pieces) return;
    const int slot = static_cast<int>(i % kSlots);
    lane_.Start(slot, slots_[slot].narrow(0, 0, size(i)),
                source.narrow(0, i * kPieceBytes, size(i)));
  };
  for (int slot = 0; slot < kSlots; ++slot) start(slot);
  for (int64_t i = 0; i < pieces; ++i) {
    const int slot = static_cast<int>(i % kSlots);
    lane_.WaitOnHost(slot);
    std::memcpy(static_cast<char*>(target.data_ptr()) + i * kPieceBytes,
                slots_[slot].const_data_ptr(), static_cast<size_t>(size(i)));
    start(i + kSlots);
  }
}

void ShardWriter::WriteTensor(SafetensorsWriter& writer, const NamedTensor& named,
                              const std::atomic<bool>& cancelled) {
  const Tensor flat = named.tensor.view({-1});
  const int64_t most = kPieceBytes / static_cast<int64_t>(flat.element_size());
  for (int64_t first = 0; first < flat.numel(); first += most) {
    CheckRuns(cancelled);
    writer.WriteRange(named.name, first,
                      flat.narrow(0, first, std::min(most, flat.numel() - first)));
  }
}

CheckpointFile ShardWriter::Write(const std::filesystem::path& folder, const std::string& name,
                                  const std::atomic<bool>& cancelled) {
  const at::NoGradGuard no_grad;
  struct Release {
    ShardWriter& self;
    ~Release() {
      self.tensors_.clear();
      self.SetCopied();
    }
  } release{*this};
  std::vector<TensorInfo> infos;
  for (const auto& [tensor_name, tensor] : tensors_) {
    infos.push_back(
        {.name = tensor_name, .dtype = tensor.scalar_type(), .shape = tensor.sizes().vec()});
  }
  CheckDisk(io::MakeDirs(folder.string()));
  // The space is reserved before anything is copied.
  SafetensorsWriter writer(folder / name, std::move(infos), {}, /*hashed=*/true);
  const bool fits = FitsHost();
  std::vector<NamedTensor> copies;
  for (const std::string& tensor_name : writer.order()) {
    CheckRuns(cancelled);
    const Tensor& from = tensors_.find(tensor_name)->second;
    Tensor to = at::empty(from.sizes(), at::TensorOptions(from.scalar_type()));
    AdviseHugePages(to);
    if (from.numel() > 0) ToHost(from, to);
    copies.push_back({tensor_name, std::move(to)});
    if (fits) continue;
    WriteTensor(writer, copies.back(), cancelled);
    copies.clear();
  }
  tensors_.clear();
  SetCopied();
  for (NamedTensor& copy : copies) {
    WriteTensor(writer, copy, cancelled);
    copy.tensor.reset();
  }
  writer.Commit();
  CheckDisk(io::SyncDir(folder.string()));
  return {.name = name, .rank = 0, .size = writer.size(), .sha256 = writer.Sha256()};
}

}  // namespace sft::engine
