#include "worker/engine/train/shard.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <utility>

#include "common/io/file.h"
#include "common/io/host_memory.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/disk.h"
#include "worker/engine/kernels/huge_pages.h"

namespace sft::engine {

using at::Tensor;

namespace {

// Of the memory that is available, for copies of the states.
constexpr double kHostShare = 0.8;
// Of the same, for copies that are kept between checkpoints.
constexpr double kKeptShare = 0.5;
constexpr int64_t kPageBytes = 4096;

Tensor FreshCopy(const Tensor& tensor) {
  Tensor copy = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
  AdviseHugePages(copy);
  return copy;
}

// Whether so many bytes are within that share of what each of a node's ranks may take.
bool IsWithin(double share, int64_t bytes, int ranks_of_node) {
  const auto available = io::AvailableMemory();
  return available.ok() &&
         static_cast<double>(bytes) < share * static_cast<double>(*available) / ranks_of_node;
}

Tensor AsBytes(const Tensor& tensor) { return tensor.view({-1}).view(at::kByte); }

// Calls work(thread, i) for each i below `count`, on so many threads; rethrows what one throws,
// after which no other is begun.
void ForEach(size_t threads, size_t count, const std::function<void(size_t, size_t)>& work) {
  std::atomic<size_t> next = 0;
  const auto run = [&](size_t thread) {
    struct Stop {
      std::atomic<size_t>& next;
      size_t count;
      ~Stop() { next = count; }
    } stop{next, count};
    for (size_t i = next++; i < count; i = next++) work(thread, i);
  };
  std::vector<std::future<void>> others;
  for (size_t i = 1; i < std::min(threads, count); ++i) {
    others.push_back(std::async(std::launch::async, run, i));
  }
  run(0);
  for (std::future<void>& other : others) other.get();
}

void CheckRuns(const std::atomic<bool>& cancelled) {
  if (cancelled) throw InfrastructureError("the checkpoint was given up: the run ends");
}

}  // namespace

ShardWriter::ShardWriter(at::Device device, int ranks_of_node, int threads, int64_t file_bytes)
    : device_(device), ranks_of_node_(ranks_of_node), file_bytes_(file_bytes) {
  for (int i = 0; i < threads; ++i) copiers_.push_back({HostLane(device, 1), {}});
}

void ShardWriter::Reserve(const std::vector<NamedTensor>& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& named : tensors) bytes += static_cast<int64_t>(named.tensor.nbytes());
  if (!IsWithin(kKeptShare, bytes, ranks_of_node_)) return;
  for (const NamedTensor& named : tensors) kept_.emplace(named.name, FreshCopy(named.tensor));
  touching_.Start([kept = kept_, threads = copiers_.size()](const std::atomic<bool>& cancelled) {
    std::vector<std::pair<char*, int64_t>> pieces;
    for (const auto& [name, copy] : kept) {
      auto* const begin = static_cast<char*>(copy.mutable_data_ptr());
      const auto size = static_cast<int64_t>(copy.nbytes());
      for (int64_t at = 0; at < size; at += kPieceBytes) {
        pieces.emplace_back(begin + at, std::min(kPieceBytes, size - at));
      }
    }
    ForEach(threads, pieces.size(), [&](size_t, size_t i) {
      const auto [begin, size] = pieces[i];
      for (int64_t at = 0; at < size && !cancelled; at += kPageBytes) begin[at] = 0;
    });
  });
}

Tensor ShardWriter::KeptFor(const std::string& name, const Tensor& tensor) const {
  const auto kept = kept_.find(name);
  const bool fits = kept != kept_.end() && kept->second.sizes() == tensor.sizes() &&
                    kept->second.scalar_type() == tensor.scalar_type();
  return fits ? kept->second : Tensor();
}

void ShardWriter::Begin(std::vector<NamedTensor> tensors) {
  touching_.Cancel();
  tensors_.clear();
  for (NamedTensor& named : tensors) tensors_.emplace(named.name, std::move(named.tensor));
  for (Copier& copier : copiers_) {
    if (!device_.is_cpu() && !copier.slot.defined()) {
      copier.slot = PinnedBuffer(kPieceBytes, at::kByte, device_);
    }
    copier.lane.Follow();
  }
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
  for (const auto& [name, tensor] : tensors_) {
    if (!KeptFor(name, tensor).defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes == 0 || IsWithin(kHostShare, bytes, ranks_of_node_);
}

void ShardWriter::CopyPiece(Copier& copier, const Piece& piece) {
  const auto bytes = static_cast<size_t>(piece.from.numel());
  const Tensor* from = &piece.from;
  Tensor slot;
  if (!piece.from.is_cpu()) {
    slot = copier.slot.narrow(0, 0, piece.from.numel());
    copier.lane.Start(0, slot, piece.from);
    copier.lane.WaitOnHost(0);
    from = &slot;
  }
  // Not copy_: its threads are the training's.
  std::memcpy(piece.to.data_ptr(), from->const_data_ptr(), bytes);
}

void ShardWriter::CopyPieces(const std::vector<Piece>& pieces, const std::atomic<bool>& cancelled) {
  ForEach(copiers_.size(), pieces.size(), [&](size_t thread, size_t i) {
    const at::NoGradGuard no_grad;
    CheckRuns(cancelled);
    CopyPiece(copiers_[thread], pieces[i]);
  });
}

ShardWriter::Tensors ShardWriter::ToHost(const Tensors& tensors,
                                         const std::atomic<bool>& cancelled) {
  Tensors copies;
  std::vector<Piece> pieces;
  for (const auto& [name, from] : tensors) {
    Tensor to = KeptFor(name, from);
    if (!to.defined()) to = FreshCopy(from);
    const Tensor source = AsBytes(from), target = AsBytes(to);
    for (int64_t first = 0; first < source.numel(); first += kPieceBytes) {
      const int64_t bytes = std::min(kPieceBytes, source.numel() - first);
      pieces.push_back({source.narrow(0, first, bytes), target.narrow(0, first, bytes)});
    }
    copies.emplace(name, std::move(to));
  }
  CopyPieces(pieces, cancelled);
  return copies;
}

std::vector<ShardWriter::Tensors> ShardWriter::Files() const {
  std::vector<Tensors> files(1);
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) {
    const auto size = static_cast<int64_t>(tensor.nbytes());
    if (bytes > 0 && bytes + size > file_bytes_) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().emplace(name, tensor);
    bytes += size;
  }
  return files;
}

ShardWriter::Writers ShardWriter::ReserveSpace(const std::filesystem::path& folder, int rank,
                                               int world, const std::vector<Tensors>& files) {
  Writers writers;
  size_t bytes = 0;
  for (const Tensors& tensors : files) {
    for (const auto& [name, tensor] : tensors) bytes += tensor.nbytes();
  }
  try {
    for (size_t i = 0; i < files.size(); ++i) {
      std::vector<TensorInfo> infos;
      for (const auto& [name, tensor] : files[i]) {
        infos.push_back(
            {.name = name, .dtype = tensor.scalar_type(), .shape = tensor.sizes().vec()});
      }
      writers.push_back(std::make_unique<SafetensorsWriter>(
          folder / ShardName(rank, world, i), std::move(infos),
          std::map<std::string, std::string>(), /*hashed=*/true));
    }
  } catch (const InfrastructureError& error) {
    if (files.size() == 1) throw;
    throw InfrastructureError(fmt::format("{}; all {} files of this rank are {} bytes",
                                          error.what(), files.size(), bytes),
                              error.code(), error.advice());
  }
  return writers;
}

void ShardWriter::WriteFile(SafetensorsWriter& writer, Tensors tensors, bool on_host,
                            const std::atomic<bool>& cancelled) {
  for (const std::string& name : writer.order()) {
    const auto taken = tensors.extract(name);
    Tensor flat = taken.mapped();
    if (!on_host) flat = ToHost({{name, flat}}, cancelled).at(name);
    flat = flat.view({-1});
    const int64_t most = kPieceBytes / static_cast<int64_t>(flat.element_size());
    for (int64_t first = 0; first < flat.numel(); first += most) {
      CheckRuns(cancelled);
      writer.WriteRange(name, first, flat.narrow(0, first, std::min(most, flat.numel() - first)));
    }
  }
  writer.Commit();
}

std::vector<CheckpointFile> ShardWriter::Write(const std::filesystem::path& folder, int rank,
                                               int world, const std::atomic<bool>& cancelled) {
  const at::NoGradGuard no_grad;
  struct Release {
    ShardWriter& self;
    ~Release() {
      self.tensors_.clear();
      self.SetCopied();
    }
  } release{*this};
  CheckDisk(io::MakeDirs(folder.string()));
  const bool fits = FitsHost();
  if (fits) {
    tensors_ = ToHost(tensors_, cancelled);
    SetCopied();
  }
  std::vector<Tensors> files = Files();
  tensors_.clear();
  const Writers writers = ReserveSpace(folder, rank, world, files);
  std::vector<CheckpointFile> written(files.size());
  ForEach(fits ? copiers_.size() : 1, files.size(), [&](size_t, size_t i) {
    const at::NoGradGuard no_grad_here;
    WriteFile(*writers[i], std::move(files[i]), fits, cancelled);
    written[i] = {ShardName(rank, world, i), rank, writers[i]->size(), writers[i]->Sha256()};
  });
  CheckDisk(io::SyncDir(folder.string()));
  return written;
}

}  // namespace sft::engine
