#include "worker/engine/kernels/graph.h"

#include <utility>

#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

class RepeatedWork : public Graph {
 public:
  explicit RepeatedWork(std::function<void()> work) : work_(std::move(work)) {}
  void Replay() override { work_(); }

 private:
  std::function<void()> work_;
};

class RepeatingRecorder : public GraphRecorder {
 public:
  void MakeRoom() override {}
  void Run(const std::function<void()>& work) override { work(); }
  std::unique_ptr<Graph> Record(std::function<void()> work) override {
    return std::make_unique<RepeatedWork>(std::move(work));
  }
};

GraphRecorderFactory& CudaFactory() {
  static GraphRecorderFactory factory = nullptr;
  return factory;
}

}  // namespace

void RegisterCudaGraphRecorder(GraphRecorderFactory factory) { CudaFactory() = factory; }

std::unique_ptr<GraphRecorder> MakeGraphRecorder(c10::Device device) {
  if (device.is_cpu()) return std::make_unique<RepeatingRecorder>();
  if (CudaFactory() == nullptr) {
    throw InternalError("no CUDA graphs in this process: the plugin libsft_cuda.so was not opened");
  }
  return CudaFactory()(device);
}

}  // namespace sft::engine
