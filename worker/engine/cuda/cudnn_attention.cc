#include "worker/engine/cuda/cudnn_attention.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cudnn/Handle.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "worker/engine/cuda/cudnn_plan.h"
#include "worker/engine/cuda/cudnn_slabs.h"
#include "worker/engine/cuda/cudnn_window_slabs.h"
#include "worker/engine/cuda/hopper.h"
#include "worker/engine/cuda/kernels/ragged.h"
#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ordered_backward.h"
#include "worker/engine/kernels/batch_shape.h"

namespace sft::engine::cuda {

namespace {

using at::Tensor;

// A ragged batch's blocks of queries are launched for its longest document, those of the others
// leave at once; the backward goes over the scores of the longest as well. Beyond this many times
// the tokens FlashAttention-2 is as fast.
constexpr int64_t kWorst = 4;

// Enqueues the calls of one batch.
class Batch {
 public:
  // `tensors` in the order of CudnnOperand. `expected_workspace`: bytes that the call should need.
  Batch(const CudnnBatch& batch, std::vector<Tensor> tensors, const plan::BackwardCall& call,
        double scale, int64_t window, const plan::BackwardHeads& heads, int64_t expected_workspace)
      : tensors_(std::move(tensors)), planned_(batch.documents) {
    const Tensor& q = tensors_[kQ];
    key_.device = q.get_device();
    key_.backward = tensors_.size() == kOperands;
    key_.deterministic = key_.backward && heads.deterministic;
    key_.ragged = batch.ragged;
    key_.documents = call.documents;
    key_.longest = batch.longest;
    key_.queries = batch.longest;
    key_.kv_heads = call.kv_heads;
    group_ = heads.group;
    key_.heads = call.kv_heads * group_;
    key_.head_dim = q.size(2);
    key_.window = window < batch.longest ? window : 0;
    key_.scale = static_cast<float>(scale);
    for (size_t i = 0; i < tensors_.size(); ++i) key_.token_strides[i] = tensors_[i].stride(0);
    handle_ = at::native::getCudnnHandle();
    plan_ =
        FindCudnnPlan(handle_, key_, std::max(plan::kCudnnWorkspace, expected_workspace) / 5 * 6);
  }

  bool HasPlan() const { return plan_ != nullptr; }

  void Run(const Tensor& lse, const Tensor& cu_seqlens, int64_t documents) const {
    const Tensor& q = tensors_[kQ];
    const Tensor workspace = at::empty({plan_->workspace_bytes()}, q.options().dtype(at::kByte));
    const Ragged ragged = key_.ragged ? MakeRagged(cu_seqlens, documents) : Ragged{};
    const int64_t kv_heads = tensors_[kK].size(1);
    for (int64_t document = 0; document < planned_; document += key_.documents) {
      for (int64_t head = 0; head < kv_heads; head += key_.kv_heads) {
        CudnnCall call;
        for (int i = 0; i < key_.operands(); ++i) call.data[i] = Operand(i, document, head);
        call.lse =
            lse.mutable_data_ptr<float>() + (document * q.size(1) + head * group_) * key_.longest;
        if (key_.ragged) PointInto(ragged, document / key_.documents, call);
        call.workspace = workspace.mutable_data_ptr();
        plan_->Run(handle_, call);
      }
    }
  }

 private:
  struct Ragged {
    RaggedShape shape;
    Tensor offsets, lengths;
  };

  void* Operand(int operand, int64_t document, int64_t key_head) const {
    const Tensor& tensor = tensors_[operand];
    const int64_t heads = tensor.size(1) / tensors_[kK].size(1) * key_head;
    const int64_t token = key_.ragged ? 0 : document * key_.longest;
    const int64_t elements = token * tensor.stride(0) + heads * key_.head_dim;
    return static_cast<char*>(tensor.data_ptr()) + elements * tensor.element_size();
  }

  Ragged MakeRagged(const Tensor& cu_seqlens, int64_t documents) const {
    Ragged ragged;
    RaggedShape& shape = ragged.shape;
    shape.documents = static_cast<int32_t>(documents);
    shape.planned = static_cast<int32_t>(planned_);
    shape.per_call = static_cast<int32_t>(key_.documents);
    shape.operands = key_.operands();
    std::copy_n(key_.token_strides.begin(), shape.operands, shape.token_strides);
    ragged.offsets = at::empty({shape.Calls() * shape.operands * shape.OffsetPitch()},
                               cu_seqlens.options().dtype(at::kLong));
    ragged.lengths = at::empty({shape.Calls() * shape.LengthPitch()}, cu_seqlens.options());
    const LaunchScope scope(cu_seqlens);
    C10_CUDA_CHECK(LaunchRaggedOffsets(shape, cu_seqlens.const_data_ptr<int32_t>(),
                                       ragged.offsets.mutable_data_ptr<int64_t>(),
                                       ragged.lengths.mutable_data_ptr<int32_t>(), scope.stream()));
    return ragged;
  }

  static void PointInto(const Ragged& ragged, int64_t index, CudnnCall& call) {
    const RaggedShape& shape = ragged.shape;
    int64_t* offsets =
        ragged.offsets.mutable_data_ptr<int64_t>() + index * shape.operands * shape.OffsetPitch();
    for (int i = 0; i < shape.operands; ++i) call.offsets[i] = offsets + i * shape.OffsetPitch();
    call.query_lengths = ragged.lengths.mutable_data_ptr<int32_t>() + index * shape.LengthPitch();
    call.key_lengths = call.query_lengths;
  }

  std::vector<Tensor> tensors_;
  int64_t planned_;
  int64_t group_ = 1;
  CudnnPlanKey key_;
  cudnnHandle_t handle_ = nullptr;
  std::shared_ptr<const CudnnPlan> plan_;
};

}  // namespace

std::optional<CudnnBatch> CudnnBatchOf(at::IntArrayRef lengths) {
  const BatchShape shape = ShapeOf(lengths);
  if (shape.longest < kShortestForCudnn) return std::nullopt;
  if (!shape.ragged) return CudnnBatch{shape.documents, shape.longest, /*ragged=*/false};
  const CudnnBatch batch{RoundDocuments(shape.documents), shape.longest, /*ragged=*/true};
  if (batch.documents * batch.longest > kWorst * shape.tokens) return std::nullopt;
  return batch;
}

plan::BackwardHeads HeadsOf(const Tensor& q, const Tensor& k) {
  return {k.size(1), q.size(1) / k.size(1), q.size(2),
          at::globalContext().deterministicAlgorithms()};
}

bool CudnnTakes(at::TensorList tensors) {
  const auto* device = at::cuda::getDeviceProperties(tensors[0].get_device());
  if (device->major != 9 && device->major != 10) return false;
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) {
    const int64_t size = tensor.size(2);
    return tensor.scalar_type() == at::kBFloat16 && size % 8 == 0 && size <= 256 &&
           tensor.stride(0) % 8 == 0 &&
           reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
  });
}

std::optional<Tensor> CudnnAttention(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Tensor& cu_seqlens, at::IntArrayRef lengths,
                                     const CudnnBatch& batch, double scale, int64_t window) {
  const Batch calls(batch, {q, k, v, out}, {batch.documents, k.size(1)}, scale, window,
                    HeadsOf(q, k), 0);
  if (!calls.HasPlan()) return std::nullopt;
  const at::TensorOptions options = q.options().dtype(at::kFloat);
  const std::vector<int64_t> sizes{batch.documents, q.size(1), batch.longest};
  // What lies behind a document's end is read by the backward and masked: it must be finite.
  Tensor lse = batch.ragged ? at::zeros(sizes, options) : at::empty(sizes, options);
  calls.Run(lse, cu_seqlens, static_cast<int64_t>(lengths.size()));
  return lse;
}

bool CudnnAttentionBackward(Tensor& dq, Tensor& dk, Tensor& dv, const Tensor& dout, const Tensor& q,
                            const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                            const Tensor& cu_seqlens, at::IntArrayRef lengths,
                            const CudnnBatch& batch, double scale, int64_t window) {
  const plan::BackwardHeads heads = HeadsOf(q, k);
  const std::vector<Tensor> tensors{q, k, v, out, dout, dq, dk, dv};
  const auto documents = static_cast<int64_t>(lengths.size());
  if (heads.InTurns(batch.longest, window) && IsHopper(q)) {
    OrderedBackward(tensors, lse, cu_seqlens, documents, batch, scale, window);
    return true;
  }
  if (heads.InWindowSlabs(batch.longest, window) &&
      CudnnBackwardInWindowSlabs(tensors, lse, cu_seqlens, documents, batch, scale, window)) {
    return true;
  }
  if (heads.InSlabs(batch.longest)) {
    return CudnnBackwardInSlabs(tensors, lse, cu_seqlens, documents, batch, scale, window);
  }
  const Batch calls(batch, tensors, plan::CallOf(heads, batch.documents, batch.longest), scale,
                    window, heads, heads.Workspace(batch.longest, batch.longest));
  if (!calls.HasPlan()) return false;
  calls.Run(lse, cu_seqlens, documents);
  return true;
}

Tensor LseByHead(const Tensor& lse, const Tensor& cu_seqlens, int64_t tokens,
                 const CudnnBatch& batch) {
  const Tensor rows = lse.permute({1, 0, 2}).reshape({lse.size(1), -1});
  if (!batch.ragged) return rows;
  // On the device, since a recording serves other lengths.
  const Tensor token = at::arange(tokens, cu_seqlens.options());
  const Tensor ends = cu_seqlens.slice(0, 1);
  const Tensor document = at::searchsorted(ends, token, /*out_int32=*/false, /*right=*/true);
  const Tensor position = token - cu_seqlens.index_select(0, document);
  return rows.index_select(1, document * batch.longest + position);
}

}  // namespace sft::engine::cuda
