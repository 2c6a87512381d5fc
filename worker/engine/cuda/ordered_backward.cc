#include "worker/engine/cuda/ordered_backward.h"

#include <ATen/ops/empty.h>

#include "worker/engine/cuda/cudnn_plan.h"
#include "worker/engine/cuda/kernels/ordered_backward.h"
#include "worker/engine/cuda/launch_scope.h"

namespace sft::engine::cuda {
namespace {

using at::Tensor;

ConstRows RowsOf(const Tensor& tensor) { return {tensor.const_data_ptr(), tensor.stride(0)}; }
MutableRows RowsToFill(const Tensor& tensor) {
  return {tensor.mutable_data_ptr(), tensor.stride(0)};
}

}  // namespace

void OrderedBackward(const std::vector<Tensor>& tensors, const Tensor& lse,
                     const Tensor& cu_seqlens, int64_t documents, const CudnnBatch& batch,
                     double scale, int64_t window) {
  const Tensor& q = tensors[kQ];
  OrderedBatch shape;
  shape.cu_seqlens = cu_seqlens.const_data_ptr<int32_t>();
  shape.documents = static_cast<int32_t>(documents);
  shape.tokens = q.size(0);
  shape.longest = batch.longest;
  shape.heads = static_cast<int32_t>(q.size(1));
  shape.kv_heads = static_cast<int32_t>(tensors[kK].size(1));
  shape.head_size = static_cast<int32_t>(q.size(2));
  shape.window = window < batch.longest ? static_cast<int32_t>(window) : 0;
  shape.scale = static_cast<float>(scale);

  const int64_t blocks = q.size(1) * shape.Blocks();
  const at::TensorOptions floats = q.options().dtype(at::kFloat);
  const Tensor dq = at::empty({blocks * kOrderedQueries * q.size(2)}, floats);
  const Tensor statistics = at::empty({2, blocks * kOrderedQueries}, floats);
  const Tensor counters = at::empty({blocks + 1}, cu_seqlens.options());
  OrderedWorkspace workspace;
  workspace.dq = dq.mutable_data_ptr<float>();
  workspace.lse = statistics.mutable_data_ptr<float>();
  workspace.delta = workspace.lse + blocks * kOrderedQueries;
  workspace.turns = counters.mutable_data_ptr<int32_t>();
  workspace.ticket = workspace.turns + blocks;

  OrderedOperands operands;
  operands.q = RowsOf(q);
  operands.k = RowsOf(tensors[kK]);
  operands.v = RowsOf(tensors[kV]);
  operands.out = RowsOf(tensors[kOut]);
  operands.dout = RowsOf(tensors[kDout]);
  operands.lse = lse.const_data_ptr<float>();
  operands.dq = RowsToFill(tensors[kDq]);
  operands.dk = RowsToFill(tensors[kDk]);
  operands.dv = RowsToFill(tensors[kDv]);
  const LaunchScope scope(cu_seqlens);
  C10_CUDA_CHECK(LaunchOrderedBackward(shape, operands, workspace, scope.stream()));
}

}  // namespace sft::engine::cuda
