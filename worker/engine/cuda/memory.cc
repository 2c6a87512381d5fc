#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "worker/engine/cuda/ops.h"

namespace sft::engine::cuda {

using at::Tensor;

// The allocator cuts a tensor from the lower end of the smallest free piece that holds it. A tensor
// of all but the upper `bytes` of the largest piece leaves just those.
Tensor EmptyAtTheEnd(const Tensor& like, int64_t bytes) {
  constexpr int64_t kPieces = 512;               // the allocator's sizes are multiples of it
  constexpr int64_t kLeast = int64_t{32} << 20;  // below it there is nothing to keep together
  const auto options = like.options().dtype(at::kByte);
  size_t largest = 1;  // 0 would ask the driver first
  c10::cuda::CUDACachingAllocator::cacheInfo(like.get_device(), &largest);
  const int64_t below = static_cast<int64_t>(largest) - (bytes + kPieces - 1) / kPieces * kPieces;
  const Tensor filler = below >= kLeast ? at::empty({below}, options) : Tensor();
  return at::empty({bytes}, options);
}

namespace {

// Memory of the host that the driver has locked.
class Pinned {
 public:
  explicit Pinned(size_t bytes) : bytes_(bytes) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) {
      memory_ = nullptr;
      return;
    }
    static_cast<void>(madvise(memory_, bytes_, MADV_HUGEPAGE));  // where there are none, small ones
    Touch();
    locked_ = cudaHostRegister(memory_, bytes_, cudaHostRegisterDefault);
  }
  ~Pinned() {
    if (memory_ == nullptr) return;
    if (locked_ == cudaSuccess) static_cast<void>(cudaHostUnregister(memory_));
    munmap(memory_, bytes_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  void* memory() const { return memory_; }
  cudaError_t locked() const { return locked_; }

 private:
  // Has the kernel give all pages, by several threads: that takes longer than to lock them.
  void Touch() const {
    constexpr size_t kPage = 4096, kPart = size_t{64} << 20;
    const size_t parts = (bytes_ + kPart - 1) / kPart;
    const size_t count = std::min<size_t>(parts, static_cast<size_t>(at::get_num_threads()));
    std::atomic<size_t> next{0};
    const auto touch = [&] {
      for (size_t part = next++; part < parts; part = next++) {
        const size_t end = std::min(bytes_, (part + 1) * kPart);
        auto* bytes = static_cast<volatile char*>(memory_);
        for (size_t i = part * kPart; i < end; i += kPage) bytes[i] = 0;
      }
    };
    std::vector<std::thread> threads;
    for (size_t i = 1; i < count; ++i) threads.emplace_back(touch);
    touch();
    for (std::thread& thread : threads) thread.join();
  }

  size_t bytes_;
  void* memory_ = nullptr;
  cudaError_t locked_ = cudaErrorMemoryAllocation;
};

}  // namespace

Tensor EmptyPinned(const Tensor& like, int64_t bytes) {
  const c10::cuda::CUDAGuard guard(like.device());
  auto pinned = std::make_unique<Pinned>(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  if (pinned->locked() != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // said here
    TORCH_CHECK(false, "EmptyPinned: the driver cannot lock ", bytes,
                " bytes of host memory: ", cudaGetErrorString(pinned->locked()));
  }
  void* const memory = pinned->memory();
  const auto free = [held = pinned.release()](void*) { delete held; };
  return at::from_blob(memory, {bytes}, free, at::TensorOptions(at::kByte));
}

}  // namespace sft::engine::cuda
