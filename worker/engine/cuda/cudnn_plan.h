#pragma once

#include <cudnn.h>

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// Plans of cuDNN for causal attention, built once for each shape. The only unit that includes
// cudnn-frontend.

namespace sft::engine::cuda {

// The tensors of a call, by name. Those up to kForwardOperands belong to the forward.
enum CudnnOperand { kQ, kK, kV, kOut, kDout, kDq, kDk, kDv, kOperands };
constexpr int kForwardOperands = kDout;

// Key of a plan: everything that it depends on. Token strides are in elements, zero for absent
// operands.
struct CudnnPlanKey {
  int64_t device = 0;
  int64_t backward = 0;
  int64_t deterministic = 0;  // of the backward: a fixed order of summation
  int64_t ragged = 0;
  int64_t documents = 0;
  int64_t longest = 0;  // keys of a document
  // Queries of a document: as many as there are keys, or fewer, then those of its last tokens.
  int64_t queries = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // 0: all
  // dk and dv lie elsewhere than k and v do, even where their token strides are the same.
  int64_t parts = 0;
  float scale = 0.0f;
  std::array<int64_t, kOperands> token_strides{};

  int operands() const { return backward ? kOperands : kForwardOperands; }
  std::string Describe() const;
  friend auto operator<=>(const CudnnPlanKey&, const CudnnPlanKey&) = default;
};

// Device pointers of one call.
struct CudnnCall {
  std::array<void*, kOperands> data{};
  void* lse = nullptr;  // fp32 [documents, heads, queries], dense
  // For a ragged batch: documents + 1 int64 an operand, then documents int32 each.
  std::array<void*, kOperands> offsets{};
  void* query_lengths = nullptr;
  void* key_lengths = nullptr;
  void* workspace = nullptr;
};

// One plan. Any thread may run it, several at once.
class CudnnPlan {
 public:
  virtual ~CudnnPlan() = default;
  virtual int64_t workspace_bytes() const = 0;
  // Enqueues the call on the handle's stream. Throws c10::Error naming the shape.
  virtual void Run(cudnnHandle_t handle, const CudnnCall& call) const = 0;
};

// The plan for `key`, built if it is not at hand (tens of milliseconds), or nullptr where cuDNN has
// none or it wants more than `most_workspace` bytes. The key's device must be current. Where the
// current stream is being captured the plan stays for the process's life: its kernels are then part
// of a CUDA graph.
std::shared_ptr<const CudnnPlan> FindCudnnPlan(cudnnHandle_t handle, const CudnnPlanKey& key,
                                               int64_t most_workspace);

}  // namespace sft::engine::cuda
