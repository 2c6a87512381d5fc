#include "worker/engine/cuda/cudnn_slabs.h"

#include <ATen/Context.h>
#include <ATen/cudnn/Handle.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>

#include "worker/engine/cuda/cudnn_plan.h"
#include "worker/engine/cuda/kernels/slabs.h"
#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/kernels/batch_shape.h"

namespace sft::engine::cuda {
namespace {

using at::Tensor;

std::vector<Slab> SlabsOf(int64_t longest, int64_t queries, int64_t window) {
  std::vector<Slab> slabs;
  for (int64_t first = 0; first < longest; first += queries) {
    Slab slab;
    slab.first = static_cast<int32_t>(first);
    slab.queries = static_cast<int32_t>(std::min(queries, longest - first));
    slab.first_key = static_cast<int32_t>(plan::SlabFirstKey(first, window));
    if (!slabs.empty()) slabs.back().next_first_key = slab.first_key;
    slabs.push_back(slab);
  }
  slabs.back().next_first_key = slabs.back().end();
  return slabs;
}

// The calls of one batch.
class SlabCalls {
 public:
  SlabCalls(const std::vector<Tensor>& tensors, const Tensor& lse, const Tensor& cu_seqlens,
            int64_t documents, const CudnnBatch& batch, double scale, int64_t window)
      : tensors_(tensors),
        lse_(lse),
        cu_seqlens_(cu_seqlens),
        documents_(documents),
        batch_(batch),
        kv_heads_(tensors[kK].size(1)),
        group_(tensors[kQ].size(1) / kv_heads_),
        head_dim_(tensors[kQ].size(2)),
        handle_(at::native::getCudnnHandle()) {
    const plan::BackwardHeads heads = HeadsOf(tensors[kQ], tensors[kK]);
    const int64_t queries = plan::SlabQueries(heads, batch.longest);
    slabs_ = SlabsOf(batch.longest, queries, window);
    const int64_t keys = plan::MostSlabKeys(batch.longest, queries, window);
    heads_ = plan::SlabKeyHeads(heads, queries, keys);
    CudnnPlanKey key;
    key.device = tensors_[kQ].get_device();
    key.backward = 1;
    key.deterministic = heads.deterministic;
    key.ragged = 1;
    key.documents = 1;
    key.longest = keys;
    key.queries = queries;
    key.heads = heads_ * group_;
    key.kv_heads = heads_;
    key.head_dim = head_dim_;
    key.window = window < keys ? window : 0;
    key.parts = 1;
    key.scale = static_cast<float>(scale);
    for (int i = 0; i < kOperands; ++i) key.token_strides[i] = TokenStride(i);
    const int64_t one = heads.Workspace(queries, keys);
    plan_ = FindCudnnPlan(handle_, key, std::max(plan::SlabBudget(keys), one) / 5 * 6);
  }

  bool HasPlan() const { return plan_ != nullptr; }

  void Run() {
    const at::TensorOptions options = tensors_[kQ].options();
    const int64_t elements = batch_.longest * width();
    workspace_ = at::empty({plan_->workspace_bytes()}, options.dtype(at::kByte));
    for (const int which : {0, 1}) {
      parts_[which] = at::empty({elements}, options);
      sums_[which] = at::empty({elements}, options.dtype(at::kFloat));
    }
    for (int64_t document = 0; document < batch_.documents; ++document) {
      PlaceOperands(document);
      for (int64_t head = 0; head < kv_heads_; head += heads_) {
        for (size_t i = 0; i < slabs_.size(); ++i) RunSlab(document, head, i);
      }
    }
  }

 private:
  int64_t width() const { return heads_ * head_dim_; }
  bool IsPart(int operand) const { return operand == kDk || operand == kDv; }
  bool HasKeys(int operand) const { return operand == kK || operand == kV || IsPart(operand); }
  int64_t TokenStride(int operand) const {
    return IsPart(operand) ? width() : tensors_[operand].stride(0);
  }

  SlabDocument DocumentOf(int64_t document) const {
    return {cu_seqlens_.const_data_ptr<int32_t>(), static_cast<int32_t>(documents_),
            static_cast<int32_t>(document)};
  }

  // Where the operands of each slab of a document lie.
  void PlaceOperands(int64_t document) {
    const auto slabs = static_cast<int64_t>(slabs_.size());
    offsets_ = at::empty({slabs, kOperands, 2}, cu_seqlens_.options().dtype(at::kLong));
    lengths_ = at::empty({slabs, kSlabLengths}, cu_seqlens_.options());
    SlabOperands operands;
    operands.count = kOperands;
    for (int i = 0; i < kOperands; ++i) {
      operands.token_strides[i] = TokenStride(i);
      operands.has_keys[i] = HasKeys(i);
      operands.is_part[i] = IsPart(i);
    }
    const LaunchScope scope(cu_seqlens_);
    for (size_t i = 0; i < slabs_.size(); ++i) {
      C10_CUDA_CHECK(LaunchSlabOffsets(operands, DocumentOf(document), slabs_[i], Offsets(i, 0),
                                       Lengths(i), scope.stream()));
    }
  }
  int64_t* Offsets(size_t slab, int operand) const {
    return offsets_.mutable_data_ptr<int64_t>() +
           (static_cast<int64_t>(slab) * kOperands + operand) * 2;
  }
  int32_t* Lengths(size_t slab) const {
    return lengths_.mutable_data_ptr<int32_t>() + static_cast<int64_t>(slab) * kSlabLengths;
  }

  void* Operand(int operand, int64_t key_head) const {
    if (IsPart(operand)) return parts_[operand - kDk].data_ptr();
    const Tensor& tensor = tensors_[operand];
    const int64_t heads = HasKeys(operand) ? key_head : key_head * group_;
    return static_cast<char*>(tensor.data_ptr()) + heads * head_dim_ * tensor.element_size();
  }

  // The plan's rows of statistics: those behind the document's end, which are masked, too.
  Tensor LseOf(int64_t document, int64_t key_head, const Slab& slab) const {
    const Tensor rows = lse_.select(0, document)
                            .narrow(0, key_head * group_, heads_ * group_)
                            .narrow(1, slab.first, slab.queries);
    const int64_t missing = slabs_.front().queries - slab.queries;
    return missing == 0 ? rows.contiguous() : at::constant_pad_nd(rows, {0, missing}, 0.0);
  }

  void RunSlab(int64_t document, int64_t key_head, size_t index) const {
    const Slab& slab = slabs_[index];
    const Tensor lse = LseOf(document, key_head, slab);
    CudnnCall call;
    for (int i = 0; i < kOperands; ++i) {
      call.data[i] = Operand(i, key_head);
      call.offsets[i] = Offsets(index, i);
    }
    call.query_lengths = Lengths(index);
    call.key_lengths = Lengths(index) + kSlabKeyLength;
    call.lse = lse.mutable_data_ptr<float>();
    call.workspace = workspace_.mutable_data_ptr();
    plan_->Run(handle_, call);
    const LaunchScope scope(cu_seqlens_);
    C10_CUDA_CHECK(LaunchAddSlab(DocumentOf(document), slab, width(), Gradient(kDk, key_head),
                                 Gradient(kDv, key_head), scope.stream()));
  }

  SlabGradient Gradient(int operand, int64_t key_head) const {
    const int which = operand - kDk;
    const Tensor out = tensors_[operand].narrow(1, key_head, heads_);
    return {parts_[which].const_data_ptr(),
            sums_[which].mutable_data_ptr<float>(),
            {out.mutable_data_ptr(), out.stride(0)}};
  }

  const std::vector<Tensor>& tensors_;
  const Tensor& lse_;
  const Tensor& cu_seqlens_;
  const int64_t documents_;
  const CudnnBatch batch_;
  const int64_t kv_heads_, group_, head_dim_;
  const cudnnHandle_t handle_;
  int64_t heads_ = 1;  // key heads of a call
  std::vector<Slab> slabs_;
  std::shared_ptr<const CudnnPlan> plan_;
  Tensor workspace_;
  // Of dk and of dv, for the key heads of a call: a slab's own, and the sums of the slabs so far.
  Tensor parts_[2], sums_[2];
  Tensor offsets_, lengths_;  // of a document's slabs
};

}  // namespace

bool CudnnBackwardInSlabs(const std::vector<Tensor>& tensors, const Tensor& lse,
                          const Tensor& cu_seqlens, int64_t documents, const CudnnBatch& batch,
                          double scale, int64_t window) {
  SlabCalls calls(tensors, lse, cu_seqlens, documents, batch, scale, window);
  if (!calls.HasPlan()) return false;
  calls.Run();
  return true;
}

}  // namespace sft::engine::cuda
