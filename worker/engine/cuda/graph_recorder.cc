#include "worker/engine/cuda/graph_recorder.h"

#include <ATen/cuda/CUDAGraph.h>
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

class Recorder : public GraphRecorder {
 public:
  explicit Recorder(c10::Device device)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())),
        pool_(at::cuda::graph_pool_handle()) {}

  std::unique_ptr<Graph> Record(std::function<void()> work) override {
    c10::cuda::CUDACachingAllocator::emptyCache();
    // Nothing runs on this stream, so that it need not follow another; memory of the pool is its.
    const c10::cuda::CUDAStreamGuard guard(stream_);
    auto captured = std::make_unique<CapturedGraph>();
    Capture capture(captured->graph, pool_);
    work();
    capture.End();
    return captured;
  }

 private:
  c10::cuda::CUDAStream stream_;
  c10::MempoolId_t pool_;
};

}  // namespace

std::unique_ptr<GraphRecorder> MakeGraphRecorder(c10::Device device) {
  return std::make_unique<Recorder>(device);
}

}  // namespace sft::engine::cuda
