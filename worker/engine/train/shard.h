#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/checkpoint/safetensors_writer.h"
#include "worker/engine/train/background.h"
#include "worker/engine/weights/host_lane.h"

namespace sft::engine {

// Writes this rank's part of a checkpoint beside the training: copies it to host memory while the
// next step computes its gradients, then writes it to files while training goes on. The training
// waits only where it would change what is not copied yet. Where the host has no room for a copy,
// that is until the files are written. Several threads copy: one alone is held up by the first
// touch of fresh memory, at a tenth of what the device could send. Reserve spares the training that
// touch. A large part is several files, which several threads write, where it was copied first, and
// verify when it is read: one alone hashes 2 GB/s.
//
// One thread trains (Reserve, Begin, WaitCopied), another one writes (Write); one part at a time.
class ShardWriter {
 public:
  // Most bytes of tensors in a file; a larger tensor has a file of its own.
  static constexpr int64_t kFileBytes = int64_t{2} << 30;

  // `ranks_of_node`: that share the host's memory. `threads`: that copy and write.
  ShardWriter(at::Device device, int ranks_of_node, int threads, int64_t file_bytes = kFileBytes);

  // Takes the host's memory for copies of such tensors, touches it beside the training and keeps it
  // for every part to come, where that is a small share of what is available; else does nothing.
  void Reserve(const std::vector<NamedTensor>& tensors);
  // `tensors`: of the device or of the host, contiguous, and unchanged until WaitCopied returns.
  void Begin(std::vector<NamedTensor> tensors) SFT_EXCLUDES(mutex_);
  // Makes the folder where it is missing and writes the rank's files there (ShardName), one at
  // least; they are durable afterwards. Gives up where `cancelled` becomes true, with an
  // InfrastructureError. Throws as SafetensorsWriter; WaitCopied returns in any case.
  std::vector<CheckpointFile> Write(const std::filesystem::path& folder, int rank, int world,
                                    const std::atomic<bool>& cancelled) SFT_EXCLUDES(mutex_);
  // Returns when the tensors of Begin may be changed; at once when nothing was begun.
  void WaitCopied() SFT_EXCLUDES(mutex_);

 private:
  // Elements are copied and written in pieces of so many bytes.
  static constexpr int64_t kPieceBytes = int64_t{32} << 20;

  using Tensors = std::map<std::string, at::Tensor>;
  using Writers = std::vector<std::unique_ptr<SafetensorsWriter>>;

  // The means of one copying thread.
  struct Copier {
    HostLane lane;
    at::Tensor slot;  // pinned bytes; none on a CPU
  };
  // Bytes of a tensor and the host's memory for them.
  struct Piece {
    at::Tensor from, to;
  };

  // The tensors of each file.
  std::vector<Tensors> Files() const;
  bool FitsHost() const;
  // The host's memory that Reserve took for a copy of the tensor; undefined where it took none.
  at::Tensor KeptFor(const std::string& name, const at::Tensor& tensor) const;
  // Copies in the host's memory.
  Tensors ToHost(const Tensors& tensors, const std::atomic<bool>& cancelled);
  void CopyPieces(const std::vector<Piece>& pieces, const std::atomic<bool>& cancelled);
  void CopyPiece(Copier& copier, const Piece& piece);
  // The space of all files, before one is written: a full disk is found at once.
  static Writers ReserveSpace(const std::filesystem::path& folder, int rank, int world,
                              const std::vector<Tensors>& files);
  // `on_host`: the tensors are; else they are copied one by one.
  void WriteFile(SafetensorsWriter& writer, Tensors tensors, bool on_host,
                 const std::atomic<bool>& cancelled);
  void SetCopied() SFT_EXCLUDES(mutex_);

  at::Device device_;
  int ranks_of_node_;
  int64_t file_bytes_;
  std::vector<Copier> copiers_;
  // The training's until the writing thread is started, then that one's.
  Tensors tensors_;
  Tensors kept_;  // what Reserve took
  Background touching_;

  Mutex mutex_;
  CondVar changed_;
  bool copied_ SFT_GUARDED_BY(mutex_) = true;
};

}  // namespace sft::engine
