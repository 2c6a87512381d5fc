#include "worker/engine/cuda/graph_recorder.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/cuda/MemPool.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>

namespace sft::engine::cuda {
namespace {

class CapturedGraph : public Graph {
 public:
  void Replay() override { graph.replay(); }
  at::cuda::CUDAGraph graph;
};

// Of the current stream; ended by End, or given up where the work threw.
class Capture {
 public:
  Capture(at::cuda::CUDAGraph& graph, c10::MempoolId_t pool) : graph_(graph) {
    graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  }
  ~Capture() {
    if (ended_) return;
    try {
      graph_.capture_end();
    } catch (const std::exception&) {
      // The error of the work is on its way.
    }
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  void End() {
    ended_ = true;
    graph_.capture_end();
  }

 private:
  at::cuda::CUDAGraph& graph_;
  bool ended_ = false;
};

namespace allocator = c10::cuda::CUDACachingAllocator;

// What is allocated on a stream comes from a pool.
class PoolScope {
 public:
  PoolScope(c10::cuda::CUDAStream stream, c10::MempoolId_t pool) : stream_(stream), pool_(pool) {
    allocator::beginAllocateToPool(stream.device_index(), pool,
                                   [stream](cudaStream_t asked) { return asked == stream; });
  }
  ~PoolScope() {
    allocator::endAllocateToPool(stream_.device_index(), pool_);
    allocator::releasePool(stream_.device_index(), pool_);
  }
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  c10::cuda::CUDAStream stream_;
  c10::MempoolId_t pool_;
};

void Follow(c10::cuda::CUDAStream later, c10::cuda::CUDAStream earlier) {
  at::cuda::CUDAEvent event;
  event.record(earlier);
  event.block(later);
}

class Recorder : public GraphRecorder {
 public:
  explicit Recorder(c10::Device device)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {}

  void MakeRoom() override { allocator::emptyCache(); }

  void Run(const std::function<void()>& work) override {
    const auto current = c10::cuda::getCurrentCUDAStream(stream_.device_index());
    Follow(stream_, current);
    {
      const c10::cuda::CUDAStreamGuard guard(stream_);
      const PoolScope scope(stream_, pool_.id());
      work();
    }
    Follow(current, stream_);
  }

  std::unique_ptr<Graph> Record(std::function<void()> work) override {
    // What is recorded does not run, so that it need not follow another stream.
    const c10::cuda::CUDAStreamGuard guard(stream_);
    auto captured = std::make_unique<CapturedGraph>();
    Capture capture(captured->graph, pool_.id());
    work();
    capture.End();
    return captured;
  }

 private:
  c10::cuda::CUDAStream stream_;
  at::cuda::MemPool pool_;
};

}  // namespace

std::unique_ptr<GraphRecorder> MakeGraphRecorder(c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);  // the pool is of the current one
  return std::make_unique<Recorder>(device);
}

}  // namespace sft::engine::cuda
