#include "worker/engine/cuda/cudnn_plan.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/util/Exception.h>
#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <list>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "common/base/mutex.h"

namespace sft::engine::cuda {

namespace {

namespace fe = cudnn_frontend;
using Attributes = fe::graph::Tensor_attributes;
using TensorPtr = std::shared_ptr<Attributes>;

constexpr size_t kMostPlans = 64;

constexpr const char* kNames[kOperands] = {"q", "k", "v", "out", "dout", "dq", "dk", "dv"};

// Names of tensors within a graph: operands are their own numbers + 1.
constexpr int64_t Uid(int operand) { return operand + 1; }
constexpr int64_t OffsetUid(int operand) { return 32 + operand; }
constexpr int64_t kLseUid = 64, kQueriesUid = 65, kKeysUid = 66;

// The operand whose offsets `operand` uses: a gradient those of its tensor where they stand alike.
int OffsetsOf(const CudnnPlanKey& key, int operand) {
  constexpr int kTensorOf[kOperands] = {kQ, kK, kV, kOut, kOut, kQ, kK, kV};
  if (key.parts && (operand == kDk || operand == kDv)) return kDk;
  const int tensor = kTensorOf[operand];
  return key.token_strides[tensor] == key.token_strides[operand] ? tensor : operand;
}

bool IsKeyOrValue(int operand) {
  return operand == kK || operand == kV || operand == kDk || operand == kDv;
}

// Describes a batch of `key` to one graph.
class GraphBuilder {
 public:
  GraphBuilder(const CudnnPlanKey& key, fe::graph::Graph& graph) : key_(key), graph_(graph) {
    graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  void Forward() {
    auto options = fe::graph::SDPA_attributes().set_generate_stats(true);
    SetOptions(options);
    const auto [out, lse] = graph_.sdpa(Input(kQ), Input(kK), Input(kV), options);
    MakeOutput(kOut, out);
    SetLse(*lse);
    lse->set_output(true);
  }

  void Backward() {
    auto options =
        fe::graph::SDPA_backward_attributes().set_deterministic_algorithm(key_.deterministic != 0);
    SetOptions(options);
    const TensorPtr q = Input(kQ), k = Input(kK), v = Input(kV);
    const TensorPtr out = Input(kOut), dout = Input(kDout);
    Attributes lse_attributes;
    SetLse(lse_attributes);
    const TensorPtr lse = graph_.tensor(lse_attributes);
    const auto [dq, dk, dv] = graph_.sdpa_backward(q, k, v, out, dout, lse, options);
    MakeOutput(kDq, dq);
    MakeOutput(kDk, dk);
    MakeOutput(kDv, dv);
  }

 private:
  template <typename Options>
  void SetOptions(Options& options) {
    options.set_name("attention")
        .set_attn_scale(key_.scale)
        .set_diagonal_alignment(key_.queries < key_.longest ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                                            : fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
    // Keeps the keys with key + bound > query: the query's own is one of the window's.
    if (key_.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(key_.window));
    if (!key_.ragged) return;
    options.set_padding_mask(true)
        .set_seq_len_q(Index("queries", kQueriesUid, key_.documents, fe::DataType_t::INT32))
        .set_seq_len_kv(Index("keys", kKeysUid, key_.documents, fe::DataType_t::INT32));
  }

  TensorPtr Index(const std::string& name, int64_t uid, int64_t entries, fe::DataType_t type) {
    return graph_.tensor(Attributes()
                             .set_name(name)
                             .set_uid(uid)
                             .set_dim({entries, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(type));
  }

  TensorPtr Offsets(int operand) {
    const int owner = OffsetsOf(key_, operand);
    TensorPtr& offsets = offsets_[owner];
    if (!offsets) {
      offsets = Index(std::string(kNames[owner]) + "_offsets", OffsetUid(owner), key_.documents + 1,
                      fe::DataType_t::INT64);
    }
    return offsets;
  }

  // [T, heads, D] with any token stride as cuDNN's [documents, heads, tokens, D].
  void Set(int operand, Attributes& attributes) {
    const int64_t heads = IsKeyOrValue(operand) ? key_.kv_heads : key_.heads;
    const int64_t tokens = IsKeyOrValue(operand) ? key_.longest : key_.queries;
    const int64_t token_stride = key_.token_strides[operand];
    attributes.set_name(kNames[operand])
        .set_uid(Uid(operand))
        .set_dim({key_.documents, heads, tokens, key_.head_dim})
        .set_stride({tokens * token_stride, key_.head_dim, token_stride, 1});
    if (key_.ragged) attributes.set_ragged_offset(Offsets(operand));
  }

  TensorPtr Input(int operand) {
    Attributes attributes;
    Set(operand, attributes);
    return graph_.tensor(attributes);
  }

  void MakeOutput(int operand, const TensorPtr& tensor) {
    Set(operand, *tensor);
    tensor->set_output(true);
  }

  // Padded even where the tokens are ragged: cuDNN 9 reads no other dense layout.
  void SetLse(Attributes& attributes) {
    attributes.set_name("lse")
        .set_uid(kLseUid)
        .set_dim({key_.documents, key_.heads, key_.queries, 1})
        .set_stride({key_.heads * key_.queries, key_.queries, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
  }

  const CudnnPlanKey& key_;
  fe::graph::Graph& graph_;
  std::array<TensorPtr, kOperands> offsets_;
};

class GraphPlan final : public CudnnPlan {
 public:
  explicit GraphPlan(const CudnnPlanKey& key) : key_(key) {}

  // Empty, or why there is no such plan.
  std::string Build(cudnnHandle_t handle, int64_t most_workspace) {
    try {
      GraphBuilder builder(key_, graph_);
      key_.backward ? builder.Backward() : builder.Forward();
      auto built = graph_.build(handle, {fe::HeurMode_t::A});
      if (built.is_bad()) return built.get_message();
      auto sized = graph_.get_workspace_size(workspace_bytes_);
      if (sized.is_bad()) return sized.get_message();
    } catch (const std::exception& error) {
      return error.what();
    }
    if (workspace_bytes_ <= most_workspace) return {};
    return fmt::format("it wants {} bytes of workspace, at most {} are given", workspace_bytes_,
                       most_workspace);
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  void Run(cudnnHandle_t handle, const CudnnCall& call) const override {
    std::unordered_map<int64_t, void*> pack{{kLseUid, call.lse}};
    for (int i = 0; i < key_.operands(); ++i) {
      pack.emplace(Uid(i), call.data[i]);
      if (key_.ragged) pack.emplace(OffsetUid(i), call.offsets[i]);
    }
    if (key_.ragged) {
      pack.emplace(kQueriesUid, call.query_lengths);
      pack.emplace(kKeysUid, call.key_lengths);
    }
    auto status = graph_.execute(handle, pack, call.workspace);
    TORCH_CHECK(status.is_good(), key_.Describe(), ": cuDNN failed: ", status.get_message());
  }

 private:
  CudnnPlanKey key_;
  fe::graph::Graph graph_;
  int64_t workspace_bytes_ = 0;
};

class PlanCache {
 public:
  using PlanPtr = std::shared_ptr<const CudnnPlan>;

  // Builds under the lock: a process runs one model, whose threads would build the same plan.
  PlanPtr Find(cudnnHandle_t handle, const CudnnPlanKey& key, int64_t most_workspace, bool captured)
      SFT_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    PlanPtr plan = FindOrBuild(handle, key, most_workspace);
    if (captured) captured_.insert(plan);
    return plan;
  }

 private:
  using Entries = std::list<std::pair<CudnnPlanKey, PlanPtr>>;

  PlanPtr FindOrBuild(cudnnHandle_t handle, const CudnnPlanKey& key, int64_t most_workspace)
      SFT_REQUIRES(mutex_) {
    if (const auto found = places_.find(key); found != places_.end()) {
      used_.splice(used_.begin(), used_, found->second);
      return used_.front().second;
    }
    auto plan = std::make_shared<GraphPlan>(key);
    const std::string refusal = plan->Build(handle, most_workspace);
    if (!refusal.empty()) {
      fmt::print(stderr, "{}: not by cuDNN: {}\n", key.Describe(), refusal);
      plan = nullptr;
    }
    used_.emplace_front(key, std::move(plan));
    places_.emplace(key, used_.begin());
    if (used_.size() > kMostPlans) {
      places_.erase(used_.back().first);
      used_.pop_back();
    }
    return used_.front().second;
  }

  Mutex mutex_;
  Entries used_ SFT_GUARDED_BY(mutex_);  // the last used first; null plans: cuDNN has none
  std::map<CudnnPlanKey, Entries::iterator> places_ SFT_GUARDED_BY(mutex_);
  std::set<PlanPtr> captured_ SFT_GUARDED_BY(mutex_);  // keeps them
};

}  // namespace

std::string CudnnPlanKey::Describe() const {
  return fmt::format(
      "attention{} of {} documents of {}{} keys, {} queries, {} and {} heads of {}, window {}, on "
      "GPU {}",
      !backward       ? ""
      : deterministic ? " backward in a fixed order"
                      : " backward",
      documents, ragged ? "up to " : "", longest, queries, heads, kv_heads, head_dim, window,
      device);
}

std::shared_ptr<const CudnnPlan> FindCudnnPlan(cudnnHandle_t handle, const CudnnPlanKey& key,
                                               int64_t most_workspace) {
  // Never destroyed: at exit the CUDA context may go before the plans would.
  static auto& cache = *std::make_unique<PlanCache>().release();
  const bool captured =
      c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  return cache.Find(handle, key, most_workspace, captured);
}

}  // namespace sft::engine::cuda
