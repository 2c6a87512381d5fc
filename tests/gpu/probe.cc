#include "tests/gpu/probe.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

#include <exception>
#include <string>

#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace {

using sft::engine::ops::Implementations;

const at::Device kGpu(at::kCUDA, 0);

// Any work made of LibTorch's kernels and ours.
at::Tensor Block(const Implementations& operations, const at::Tensor& x, const at::Tensor& w,
                 const at::Tensor& norm) {
  const at::Tensor projected = at::mm(x, w);
  at::Tensor hidden = at::empty({x.size(0), projected.size(1) / 2}, projected.options());
  operations.Glu(hidden, projected, sft::plan::ActivationKind::kSilu, {});
  at::Tensor normed = at::empty_like(hidden);
  operations.RmsNorm(normed, hidden, norm, 1e-6, {});
  return normed;
}

template <typename Work>
const char* Report(const Work& work) {
  static std::string text;
  try {
    text = work();
  } catch (const std::exception& error) {
    text = error.what();
  }
  return text.empty() ? nullptr : text.c_str();
}

std::string CheckGraph(const Implementations& operations) {
  const auto options = at::TensorOptions(at::kBFloat16).device(kGpu);
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(side);
  at::Tensor x = at::randn({64, 256}, options), norm = at::randn({128}, options);
  const at::Tensor w = at::randn({256, 256}, options);
  Block(operations, x, w, norm);  // cuBLAS allocates its workspace before the capture
  side.synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const at::Tensor captured = Block(operations, x, w, norm);
  graph.capture_end();
  for (int i = 0; i < 3; ++i) {
    x.normal_();
    graph.replay();
    const at::Tensor eager = Block(operations, x, w, norm);
    if (!at::equal(captured, eager)) return "a replay differs from eager work";
  }
  return {};
}

std::string CheckNccl() {
  const c10::cuda::CUDAGuard guard(kGpu);
  auto store = c10::make_intrusive<c10d::HashStore>();
  c10d::ProcessGroupNCCL group(store, 0, 1);
  const at::Tensor expected = at::arange(1000, at::TensorOptions(at::kFloat).device(kGpu));
  std::vector<at::Tensor> tensors{expected.clone()};
  group.allreduce(tensors)->wait();
  if (!at::equal(tensors[0], expected)) return "an all-reduce of one rank changed its tensor";
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  side.synchronize();
  {
    const c10::cuda::CUDAStreamGuard on_side(side);
    at::cuda::CUDAGraph graph;
    graph.capture_begin();
    tensors[0].mul_(2);
    group.allreduce(tensors)->wait();
    graph.capture_end();
    graph.replay();
    side.synchronize();
  }
  if (!at::equal(tensors[0], expected * 2)) return "a captured all-reduce was not replayed";
  group.shutdown();
  return {};
}

}  // namespace

const char* sft_probe_cuda_graph(const Implementations& operations) {
  return Report([&] { return CheckGraph(operations); });
}
const char* sft_probe_nccl_alone() { return Report(CheckNccl); }
