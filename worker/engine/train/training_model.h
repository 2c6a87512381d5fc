#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/execution.h"
#include "common/spec/job_spec.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/data/step_plan.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/dist/mesh.h"
#include "worker/engine/model/decoder.h"
#include "worker/engine/nn/head_exchange.h"
#include "worker/engine/nn/token_exchange.h"
#include "worker/engine/optim/adamw_set.h"
#include "worker/engine/train/pipeline.h"
#include "worker/engine/train/shared_gradients.h"
#include "worker/engine/weights/gradient_sink.h"
#include "worker/engine/weights/host_optimizer.h"
#include "worker/engine/weights/param_placement.h"
#include "worker/engine/weights/trainable_store.h"

namespace sft::engine {

class BaseWeights;

// The type a job computes in on a device: what it says, or bf16 on a GPU and fp32 on a CPU.
at::ScalarType ComputeTypeOf(const spec::JobSpec& spec, at::Device device);

// The model of a job on one rank with its optimizer: the wiring of layout, sources, store, sink and
// decoder that the job's strategy asks for. A step is
//
//   BeginStep; RunMicroBatches, or ForwardBackward for each where there is one stage;
//   ReduceGradients; Update
//
// called by all ranks alike. Of a pipeline each rank has the units of its stage; what is asked of
// the whole model is then a collective of the stages. Thread-compatible.
class TrainingModel {
 public:
  // Loads the base from `model_dir` and makes what is trained: the base itself, or fresh adapters
  // from the job's seed. Without `execution`, plan::Unplanned. Borrows `comm`. Collective;
  // throws UserError (model, target modules).
  TrainingModel(const spec::JobSpec& spec, const std::filesystem::path& model_dir,
                Communicator& comm,
                const std::optional<plan::ExecutionPlan>& execution = std::nullopt);
  ~TrainingModel();
  TrainingModel(const TrainingModel&) = delete;
  TrainingModel& operator=(const TrainingModel&) = delete;

  // Replaces the trained weights: `read` gives each as a whole, of any float type and device, in
  // the order of the layout, or an undefined tensor to leave it as it is.
  void SetTrained(const std::function<at::Tensor(const ParamInfo& param)>& read);
  // Replaces the adapters' values; weights of the base that the adapter does not have stay. Throws
  // UserError when a factor is missing or has another shape.
  void LoadAdapter(const Adapter& adapter);

  void BeginStep();
  // Sum of the cross entropies over the batch's targets, fp64 scalar on the device, or the sums of
  // `objective`. `step` and `micro` choose the dropout masks; `last`: of this step.
  at::Tensor ForwardBackward(const MicroBatch& batch, int64_t step, int micro, bool last,
                             const RowObjective& objective = {});
  // The micro-batches of a step, each with its loss as ForwardBackward gives it; on the stages of a
  // pipeline but the last zeros. `objective_of` may give an empty one; not with a pipeline.
  using BatchOf = std::function<MicroBatch(int micro)>;
  using ObjectiveOf = std::function<RowObjective(const MicroBatch& batch)>;
  std::vector<at::Tensor> RunMicroBatches(int micro_batches, int64_t step, const BatchOf& batch_of,
                                          const ObjectiveOf& objective_of = {});
  // Sums the gradients over the ranks; returns the norm of `scale` times them.
  double ReduceGradients(double scale);
  // One optimizer step with gradients times `scale`. With the optimizer on the host a unit's update
  // may wait until its weights are wanted, which nothing outside can tell.
  void Update(double lr, double scale);

  // As ForwardBackward, without gradients and dropout; both are of the rank's share of the tokens
  // where these are cut over ranks, for attention or between shared matrices.
  at::Tensor Loss(const MicroBatch& batch);
  // The sum of Loss over micro-batches; on the stages of a pipeline but the last zero. `alive` is
  // called before each.
  at::Tensor SumOfLosses(int micro_batches, const BatchOf& batch_of,
                         const std::function<void()>& alive);
  // The cross entropy of each target, fp64 [loss_tokens] on the device; empty for an empty batch.
  at::Tensor RowLosses(const MicroBatch& batch);
  // Logits of every token [T, V], or of those that `tokens` numbers.
  at::Tensor Logits(const MicroBatch& batch, const std::vector<int64_t>& tokens = {});

  // The trained weights this rank updates, on the host; and back. For the best weights so far.
  std::vector<at::Tensor> Snapshot() const;
  void Restore(const std::vector<at::Tensor>& snapshot);

  // The optimizers of this rank's parts, with the last step finished: master weights (params())
  // and states, by parameter and first element. Both may be overwritten, MastersChanged then
  // called.
  std::vector<AdamW*> Optimizers();
  // Makes all that is computed with follow the master weights. A collective.
  void MastersChanged();
  // True if this rank's part of a trained parameter is the first copy of it, which is the one to be
  // saved; and if it has any such.
  bool Saves(std::string_view param) const { return saved_.contains(param); }
  bool holds_first_copy() const { return !saved_.empty(); }
  // A trained parameter of the whole model, as TrainableStore::Gather; a collective.
  at::Tensor Gather(int unit, int param) const;

  const ModelConfig& config() const { return config_; }
  // Of the whole model, and of what this rank has of matrices that ranks share: the same units and
  // parameters, in other shapes. Weights, parts and gradients are in the shapes of the second.
  const ModelLayout& layout() const { return whole_; }
  const ModelLayout& own_layout() const { return layout_; }
  const Mesh& mesh() const { return mesh_; }
  const TrainableStore& store() const;  // up to date
  at::ScalarType compute_type() const { return compute_; }
  Decoder& decoder() { return *decoder_; }
  // Gradients of the last ReduceGradients, in the order of store().parts(); unscaled. Valid until
  // the next backward.
  const std::vector<at::Tensor>& gradients() const { return *gradients_; }

 private:
  // What this rank has of the micro-batch.
  DeviceBatch ShareOf(const MicroBatch& batch) const;
  void InitTrainables(const BaseWeights& base);
  // Of DoRA's adapters, by parameter. Walks the blocks: a collective where weights are sharded.
  std::map<std::string, at::Tensor> InitialMagnitudes();
  void MakeSource(const BaseWeights& base, const plan::ExecutionPlan& run);
  std::vector<HostOptimizer::PartInfo> PartInfos() const;
  // Where each part lies, and what this rank saves.
  void PlaceParts();
  // Groups for what several stages hold, and the sums of its gradients over them.
  void ConnectCopies();
  // The layout with this rank's parts of shared matrices, and the model's description as it has it.
  void CutMatrices();
  ModelConfig OwnConfig() const;
  // The whole of a parameter, of this rank's part.
  at::Tensor GatherParts(int unit, int param, const at::Tensor& part) const;
  void SumCopies();
  void MakeOptimizers();
  void WeightsChanged();
  bool drops() const {
    // The log-probabilities that are compared with a reference's are without masks, as its own.
    if (spec_.prefers()) return false;
    return (!spec_.full_finetune() && spec_.lora.dropout > 0.0) ||
           config_.embedding_dropout + config_.residual_dropout + config_.attention_dropout > 0.0;
  }
  double NoiseAlpha() const { return spec_.hyperparameters.neftune_noise_alpha; }
  // Of a micro-batch; nothing where no random numbers are drawn.
  std::optional<DropoutKey> DropoutOf(int64_t step, int micro) const;
  bool draws() const { return drops() || NoiseAlpha() > 0.0; }
  // Where all that blocks read and add to lies where it lay, and nothing but shapes decides what
  // they do; says so on stderr where it does not.
  void RecordBlocks();

  spec::JobSpec spec_;
  Communicator& comm_;
  Mesh mesh_;
  HeadExchange exchange_;  // of the node's ranks that have other tokens of the same rows
  TokenExchange sharers_;  // of the ranks that share the matrices
  at::ScalarType compute_;
  ModelConfig config_;
  ModelLayout whole_, layout_;
  std::unique_ptr<TrainableStore> store_;
  std::vector<ParamPlacement> placements_;    // by position in store().parts()
  std::set<std::string, std::less<>> saved_;  // names of trained parameters
  std::unique_ptr<HostOptimizer> host_;
  std::unique_ptr<WeightSource> source_;
  std::unique_ptr<GradientSink> sink_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<Pipeline> pipeline_;  // null: one stage
  std::unique_ptr<SharedGradients> shared_;
  std::unique_ptr<Communicator> copies_;  // stages that hold the table; null: this one is alone
  std::unique_ptr<AdamWSet> adamw_;  // by position in store().parts(); null: host_ has the states
  const std::vector<at::Tensor>* gradients_ = nullptr;  // the sink's
};

}  // namespace sft::engine
