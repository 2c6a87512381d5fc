#include "worker/engine/cuda/cudnn_window_slabs.h"

#include <ATen/cudnn/Handle.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>

#include "worker/engine/cuda/cudnn_plan.h"
#include "worker/engine/cuda/kernels/window_slabs.h"
#include "worker/engine/cuda/launch_scope.h"

namespace sft::engine::cuda {
namespace {

using at::Tensor;

constexpr WindowOperands::Rows kRowsOf[kOperands] = {
    WindowOperands::kQueries, WindowOperands::kKeys,    WindowOperands::kKeys,
    WindowOperands::kQueries, WindowOperands::kQueries, WindowOperands::kQueries,
    WindowOperands::kParts,   WindowOperands::kParts};

// The calls of one batch.
class WindowCalls {
 public:
  WindowCalls(const std::vector<Tensor>& tensors, const Tensor& cu_seqlens, int64_t documents,
              const CudnnBatch& batch, double scale, int64_t window)
      : tensors_(tensors),
        cu_seqlens_(cu_seqlens),
        batch_(batch),
        heads_(HeadsOf(tensors[kQ], tensors[kK])),
        handle_(at::native::getCudnnHandle()) {
    slabs_.cu_seqlens = cu_seqlens.const_data_ptr<int32_t>();
    slabs_.documents = static_cast<int32_t>(documents);
    slabs_.queries = static_cast<int32_t>(plan::kWindowSlab);
    slabs_.per_document = static_cast<int32_t>((batch.longest - 1) / plan::kWindowSlab + 1);
    slabs_.before = static_cast<int32_t>(plan::WindowKeysBefore(window));
    call_ = plan::WindowCallOf(heads_, batch.documents * slabs_.per_document, window);
    CudnnPlanKey key;
    key.device = tensors_[kQ].get_device();
    key.backward = 1;
    key.deterministic = 1;
    key.ragged = 1;
    key.documents = call_.slabs;
    key.longest = slabs_.keys();
    key.queries = slabs_.queries;
    key.heads = call_.kv_heads * heads_.group;
    key.kv_heads = call_.kv_heads;
    key.head_dim = heads_.head_dim;
    key.window = window;
    key.parts = 1;
    key.scale = static_cast<float>(scale);
    for (int i = 0; i < kOperands; ++i) key.token_strides[i] = TokenStride(i);
    const int64_t expected =
        call_.slabs * call_.kv_heads * heads_.Workspace(slabs_.queries, slabs_.keys());
    plan_ = FindCudnnPlan(handle_, key, std::max(plan::kCudnnWorkspace, expected) / 5 * 6);
  }

  bool HasPlan() const { return plan_ != nullptr; }

  void Run(const Tensor& lse) {
    PlaceOperands();
    const at::TensorOptions options = tensors_[kQ].options();
    const Tensor workspace = at::empty({plan_->workspace_bytes()}, options.dtype(at::kByte));
    const Tensor statistics = Statistics(lse);
    for (Tensor& parts : parts_) {
      parts = at::empty({call_.Planned(), slabs_.keys(), width()}, options);
    }
    for (int64_t head = 0; head < heads_.kv_heads; head += call_.kv_heads) {
      const Tensor of_heads = statistics.select(0, head / call_.kv_heads);
      for (int64_t i = 0; i < call_.calls; ++i) {
        CudnnCall call;
        for (int operand = 0; operand < kOperands; ++operand) {
          call.data[operand] = Operand(operand, head);
          call.offsets[operand] = offsets_.select(0, i).select(0, operand).mutable_data_ptr();
        }
        call.query_lengths = lengths_.select(0, i).select(0, 0).mutable_data_ptr();
        call.key_lengths = lengths_.select(0, i).select(0, 1).mutable_data_ptr();
        call.lse = of_heads.select(0, i * call_.slabs).mutable_data_ptr();
        call.workspace = workspace.mutable_data_ptr();
        plan_->Run(handle_, call);
      }
      const LaunchScope scope(cu_seqlens_);
      C10_CUDA_CHECK(LaunchAddWindowParts(slabs_, batch_.longest, width(), Gradient(kDk, head),
                                          Gradient(kDv, head), scope.stream()));
    }
  }

 private:
  int64_t width() const { return call_.kv_heads * heads_.head_dim; }
  int64_t TokenStride(int operand) const {
    return kRowsOf[operand] == WindowOperands::kParts ? width() : tensors_[operand].stride(0);
  }

  void PlaceOperands() {
    WindowOperands operands;
    operands.calls = static_cast<int32_t>(call_.calls);
    operands.per_call = static_cast<int32_t>(call_.slabs);
    operands.count = kOperands;
    for (int i = 0; i < kOperands; ++i) operands.token_strides[i] = TokenStride(i);
    std::copy_n(kRowsOf, kOperands, operands.rows);
    offsets_ = at::empty({call_.calls, kOperands, operands.OffsetPitch()},
                         cu_seqlens_.options().dtype(at::kLong));
    lengths_ = at::empty({call_.calls, 2, operands.LengthPitch()}, cu_seqlens_.options());
    const LaunchScope scope(cu_seqlens_);
    C10_CUDA_CHECK(LaunchWindowOffsets(slabs_, operands, offsets_.mutable_data_ptr<int64_t>(),
                                       lengths_.mutable_data_ptr<int32_t>(), scope.stream()));
  }

  // The logsumexp by groups of key heads and by slabs: [groups, planned slabs, heads of a call,
  // queries]. What belongs to no token is zero: it is read and masked.
  Tensor Statistics(const Tensor& lse) const {
    const int64_t slabs = slabs_.per_document, groups = heads_.kv_heads / call_.kv_heads;
    const int64_t missing = slabs * slabs_.queries - batch_.longest;
    const Tensor rows = missing == 0 ? lse : at::constant_pad_nd(lse, {0, missing}, 0.0);
    const int64_t heads = call_.kv_heads * heads_.group;
    Tensor statistics = at::zeros({groups, call_.Planned(), heads, slabs_.queries}, lse.options());
    statistics.narrow(1, 0, batch_.documents * slabs)
        .view({groups, batch_.documents, slabs, heads, slabs_.queries})
        .copy_(rows.view({batch_.documents, groups, heads, slabs, slabs_.queries})
                   .permute({1, 0, 3, 2, 4}));
    return statistics;
  }

  void* Operand(int operand, int64_t key_head) const {
    if (kRowsOf[operand] == WindowOperands::kParts) return parts_[operand - kDk].data_ptr();
    const Tensor& tensor = tensors_[operand];
    const bool has_keys = kRowsOf[operand] == WindowOperands::kKeys;
    return tensor.select(1, has_keys ? key_head : key_head * heads_.group).data_ptr();
  }

  WindowGradient Gradient(int operand, int64_t key_head) const {
    const Tensor out = tensors_[operand].select(1, key_head);
    return {parts_[operand - kDk].const_data_ptr(), {out.mutable_data_ptr(), out.stride(0)}};
  }

  const std::vector<Tensor>& tensors_;
  const Tensor& cu_seqlens_;
  const CudnnBatch batch_;
  const plan::BackwardHeads heads_;
  const cudnnHandle_t handle_;
  WindowSlabs slabs_;
  plan::WindowCall call_;
  std::shared_ptr<const CudnnPlan> plan_;
  Tensor parts_[2];  // of dk and of dv, for the key heads of a call
  Tensor offsets_, lengths_;
};

}  // namespace

bool CudnnBackwardInWindowSlabs(const std::vector<Tensor>& tensors, const Tensor& lse,
                                const Tensor& cu_seqlens, int64_t documents,
                                const CudnnBatch& batch, double scale, int64_t window) {
  WindowCalls calls(tensors, cu_seqlens, documents, batch, scale, window);
  if (!calls.HasPlan()) return false;
  calls.Run(lse);
  return true;
}

}  // namespace sft::engine::cuda
