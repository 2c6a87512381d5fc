#include "worker/engine/train/training_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/plan/context.h"
#include "common/plan/memory.h"
#include "common/plan/stages.h"
#include "common/plan/tensor.h"
#include "worker/engine/base/error.h"
#include "worker/engine/base/phase_span.h"
#include "worker/engine/kernels/graph.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/model/adapters.h"
#include "worker/engine/model/families.h"
#include "worker/engine/optim/grad_norm.h"
#include "worker/engine/train/base_weights.h"
#include "worker/engine/train/context_share.h"
#include "worker/engine/train/device_batch.h"
#include "worker/engine/train/padding.h"
#include "worker/engine/weights/adapted_source.h"
#include "worker/engine/weights/fp8_source.h"
#include "worker/engine/weights/replicated_sink.h"
#include "worker/engine/weights/sharded_sink.h"
#include "worker/engine/weights/tensor_cut.h"
#include "worker/engine/weights/updating_source.h"

namespace sft::engine {

using at::Tensor;

namespace {

Placement PlacementOf(spec::Sharding sharding) {
  switch (sharding) {
    case spec::Sharding::kZero1:
    case spec::Sharding::kZero2:
      return Placement::kShardedOptimizer;
    case spec::Sharding::kFullShard:
    case spec::Sharding::kHybridShard:
      return Placement::kFullShard;
    case spec::Sharding::kDdp:
      break;
  }
  return Placement::kReplicated;
}

at::ScalarType MasterTypeOf(const spec::JobSpec& spec) {
  return spec.hyperparameters.master_weights == spec::MasterWeights::kBf16 ? at::kBFloat16
                                                                           : at::kFloat;
}

// A node's ranks share the weights where the job says hybrid_shard; else all do.
MeshShape MeshOf(const spec::JobSpec& spec, const Communicator& comm) {
  if (spec.compute.gpus_per_node < 1) throw InternalError("a job with no GPU a node");
  MeshShape shape{.pipeline = spec.parallelism.pipeline_parallel_size,
                  .context = spec.parallelism.context_parallel_size,
                  .tensor = spec.parallelism.tensor_parallel_size,
                  .context_nodes = spec.context_nodes()};
  const int rows = comm.world() / (shape.pipeline * shape.context * shape.tensor);
  const bool hybrid = spec.parallelism.sharding == spec::Sharding::kHybridShard;
  const bool replicated = spec.parallelism.sharding == spec::Sharding::kDdp;
  shape.shard = hybrid       ? spec.compute.gpus_per_node / (shape.context * shape.tensor)
                : replicated ? 1
                             : rows;
  if (shape.shard < 1) throw InternalError("ranks share rows over nodes, and shards are of a node");
  shape.replicate = rows / shape.shard;
  return shape;
}

// The ranks that weights, or an optimizer's states, are cut over.
Communicator& CutOver(const Mesh& mesh) { return mesh.Group({Axis::kShard, Axis::kContext}); }

// Where weights are gathered in bf16, all their gradients too are sent so: half of the bytes of the
// largest messages of a step. Adapters and replicated weights are few or sent once, in fp32.
at::ScalarType WireTypeOf(const spec::JobSpec& spec, const TrainableStore& store,
                          at::ScalarType compute) {
  const bool narrow = spec.full_finetune() && store.placement() == Placement::kFullShard;
  return narrow ? compute : at::kFloat;
}

std::unique_ptr<GradientSink> MakeSink(const spec::JobSpec& spec, const ModelLayout& layout,
                                       const TrainableStore& store, at::ScalarType compute,
                                       const Mesh& mesh) {
  const bool whole = store.placement() == Placement::kReplicated ||
                     spec.parallelism.sharding == spec::Sharding::kZero1;
  if (!whole) {
    return std::make_unique<ShardedSink>(
        layout, store, CutOver(mesh),
        ShardedSink::Options{WireTypeOf(spec, store, compute), mesh.Size(Axis::kReplicate) > 1
                                                                   ? &mesh.Group(Axis::kReplicate)
                                                                   : nullptr});
  }
  const auto bucket_bytes =
      static_cast<int64_t>(spec.parallelism.ddp_bucket_cap_mb * 1024.0 * 1024.0);
  return std::make_unique<ReplicatedSink>(layout, store, bucket_bytes, mesh.Group(kTokenAxes));
}

// Frozen linears that are not quantised pass through the buffers of those that are, as their own
// bytes (MakePlainFormat): there is room beside them for the adapters.
void ExpandLinears(ModelLayout& layout) {
  for (UnitInfo& unit : layout.units) {
    for (ParamInfo& param : unit.params) param.quantized |= param.role == ParamRole::kLinear;
  }
}

plan::Device KindOf(at::Device device) {
  return device.is_cpu() ? plan::Device::kCpu : plan::Device::kGpu;
}

// As transformers: norms and biases, these by their names, are not decayed. As PEFT's LoRA+: B has
// a learning rate of its own, which it shares with all that has one dimension. As Unsloth: so have
// embedding and head.
UpdateRule RuleOf(const ParamInfo& param, const spec::JobSpec& spec) {
  UpdateRule rule;
  rule.decays = param.role != ParamRole::kNorm && !param.name.ends_with("bias");
  if (!spec.full_finetune() && (param.role == ParamRole::kLoraB || param.shape.size() == 1)) {
    rule.rate_ratio = spec.lora.loraplus_lr_ratio;
  }
  const auto& h = spec.hyperparameters;
  const bool table = param.role == ParamRole::kEmbedding || param.role == ParamRole::kHead;
  if (table && h.embedding_learning_rate > 0) {
    rule.rate_ratio = h.embedding_learning_rate / h.learning_rate;
  }
  return rule;
}

plan::StageMap StagesOf(const ModelConfig& config, const spec::JobSpec& spec) {
  auto stages = plan::DivideModel(config, spec);
  if (!stages.ok()) throw UserError(std::string(Message(stages.status())), "bad_model");
  return *std::move(stages);
}

void CheckDropout(const ModelConfig& config, at::ScalarType compute, const Communicator& comm) {
  if (config.dropout_left_out > 0 && comm.rank() == 0) {
    fmt::print(stderr,
               "attention_dropout = {} of config.json is left out: no probability is dropped\n",
               config.dropout_left_out);
  }
  const at::Device device = comm.device();
  if (config.attention_dropout == 0.0 || device.is_cpu() || compute == at::kBFloat16) return;
  throw UserError(
      "on a GPU the dropout of attention's probabilities (attn_pdrop of config.json) "
      "needs compute in bf16",
      "bad_model", "leave parallelism.compute_type out, or set attn_pdrop to 0");
}

}  // namespace

at::ScalarType ComputeTypeOf(const spec::JobSpec& spec, at::Device device) {
  const bool bf16 = plan::ComputeTypeOf(spec, KindOf(device)) == spec::ComputeType::kBf16;
  return bf16 ? at::kBFloat16 : at::kFloat;
}

TrainingModel::TrainingModel(const spec::JobSpec& spec, const std::filesystem::path& model_dir,
                             Communicator& comm,
                             const std::optional<plan::ExecutionPlan>& execution)
    : spec_(spec),
      comm_(comm),
      mesh_(comm, MeshOf(spec, comm)),
      exchange_(mesh_.ContextInNode()),
      sharers_(mesh_.Group(Axis::kTensor)),
      compute_(ComputeTypeOf(spec, comm.device())),
      config_(ReadConfig(model_dir)),
      layout_(MakeLayout(config_)) {
  auto problem = plan::CheckContext(config_, spec_);
  if (!problem) problem = plan::CheckTensor(config_, spec_);
  if (problem) throw UserError(problem->key + ": " + problem->message, "bad_config");
  CheckDropout(config_, compute_, comm_);
  PrepareLayout(layout_, spec_);
  plan::ExecutionPlan run = execution ? *execution : plan::Unplanned(spec_, KindOf(comm_.device()));
  if (run.stages.begins.empty()) run.stages = StagesOf(config_, spec_);
  layout_.Divide(run.stages, mesh_.Coordinate(Axis::kPipeline));
  const bool full = spec_.full_finetune();
  if (!full && !spec_.qlora() &&
      (run.blocks_on_host || plan::ExpandsBlocks(spec_, KindOf(comm_.device())))) {
    ExpandLinears(layout_);
  }
  const BaseWeights base(model_dir, layout_, comm_.device());
  if (layout_.stored.form == plan::StoredForm::kNf4) base.QuantizeAsStored(layout_);
  if (spec_.qlora()) base.KeepMxfp4(layout_);
  NamePartsAsStored(base.files(), layout_);
  CutMatrices();
  const Placement placement = PlacementOf(spec_.parallelism.sharding);
  store_ = std::make_unique<TrainableStore>(
      layout_, compute_, MasterTypeOf(spec_), placement, CutOver(mesh_),
      OnHost{.masters = run.optimizer_on_host, .blocks = run.blocks_on_host && full});
  PlaceParts();
  shared_ = std::make_unique<SharedGradients>(mesh_, placements_);
  MakeOptimizers();
  MakeSource(base, run);
  InitTrainables(base);
  sink_ = MakeSink(spec_, layout_, *store_, compute_, mesh_);
  decoder_ = std::make_unique<Decoder>(
      OwnConfig(), layout_, *source_, comm_.device(),
      DecoderOptions{.lora = ScalingOf(spec_.lora),
                     .noise_alpha = NoiseAlpha(),
                     .router_balance = spec_.hyperparameters.router_aux_loss_coef,
                     .run = run});
  if (run.graphs) RecordBlocks();
  if (run.stages.stages == 1) return;
  pipeline_ = std::make_unique<Pipeline>(layout_, mesh_, *decoder_,
                                         Pipeline::Row{config_.hidden, compute_});
  ConnectCopies();
}

TrainingModel::~TrainingModel() = default;

ModelConfig TrainingModel::OwnConfig() const {
  ModelConfig own = config_;
  static_cast<plan::ModelShape&>(own) = plan::ShapeOfTensorRank(config_, spec_);
  return own;
}

void TrainingModel::CutMatrices() {
  whole_ = layout_;
  if (sharers_.ranks() == 1) return;
  ModelLayout own = MakeLayout(OwnConfig());
  PrepareLayout(own, spec_);
  layout_ = CutOver(whole_, own, sharers_.ranks(), sharers_.rank());
}

void TrainingModel::RecordBlocks() {
  const Tensor heads = at::empty({1, config_.heads, config_.LargestHead()},
                                 at::TensorOptions(comm_.device()).dtype(compute_));
  // The layers' own inputs are made anew for each micro-batch.
  if (drops() || mesh_.Size(Axis::kContext) > 1 || sharers_.ranks() > 1 ||
      config_.layer_input > 0 || config_.HasExperts() || !source_->fixed() || !sink_->fixed() ||
      !ops::AttentionReadsShapeAlone(heads)) {
    fmt::print(stderr,
               "the plan has blocks recorded, but this job's cannot be: they run as they are\n");
    return;
  }
  decoder_->RecordBlocks(MakeGraphRecorder(comm_.device()), *sink_);
}

void TrainingModel::MakeSource(const BaseWeights& base, const plan::ExecutionPlan& run) {
  auto source = std::make_unique<ComposedSource>();
  source->Add(LoadFrozen(layout_, base,
                         {.compute = compute_,
                          .bits = spec_.qlora() ? spec_.quantization.bits : 0,
                          .double_quant = spec_.quantization.double_quant,
                          .fp8 = spec_.fp8() && !spec_.fp8_copies(),
                          .sharded = store_->placement() == Placement::kFullShard,
                          .run = run},
                         CutOver(mesh_)));
  if (host_) {
    source->Add(std::make_unique<UpdatingSource>(store_->MakeSource(), *host_));
  } else {
    source->Add(store_->MakeSource());
  }
  std::unique_ptr<WeightSource> products = std::move(source);
  if (spec_.fp8_copies()) {
    products = std::make_unique<Fp8Source>(
        layout_, std::move(products),
        Fp8Source::Options{.weight_gradients = spec_.fp8_weight_gradients(), .run = run},
        comm_.device());
  }
  source_ =
      std::make_unique<AdaptedSource>(layout_, std::move(products), ScalingOf(spec_.lora).scale,
                                      std::bind_front(&TrainableStore::Gather, store_.get()));
}

// The norms of the rows of the weights as they are computed with, de-quantised: B is still zero.
std::map<std::string, Tensor> TrainingModel::InitialMagnitudes() {
  std::map<std::string, Tensor> magnitudes;
  if (!spec_.lora.use_dora || spec_.full_finetune()) return magnitudes;
  const at::NoGradGuard no_grad;
  for (int unit = 1; unit < layout_.head_unit(); ++unit) {
    const UnitInfo& info = layout_.units[unit];
    if (!info.held()) continue;
    AcquiredUnit acquired(*source_, layout_, unit, WeightUse::kForward);
    for (size_t i = 0; i < acquired.weights().gains.size(); ++i) {
      for (const MatrixInfo::Member& member : info.Matrix(static_cast<int>(i)).members) {
        if (member.magnitude < 0) continue;
        const Tensor& norms = acquired.weights().gains[i].norm;
        magnitudes[info.params[member.magnitude].name] =
            norms.narrow(0, member.first_row, member.rows).clone();
      }
    }
  }
  return magnitudes;
}

void TrainingModel::InitTrainables(const BaseWeights& base) {
  const uint64_t seed = spec_.hyperparameters.seed;
  const std::map<std::string, Tensor> magnitudes = InitialMagnitudes();
  store_->Load([&](int unit, int param, int64_t first, int64_t count) {
    const ParamInfo& info = layout_.units[unit].params[param];
    if (info.role == ParamRole::kMagnitude) {
      return magnitudes.at(info.name).narrow(0, first, count);
    }
    if (!info.of_base()) {
      const ParamInfo& whole = whole_.units[unit].params[param];
      return PartOf(info, InitialFactor(whole, seed, spec_.lora.init))
          .view({-1})
          .narrow(0, first, count);
    }
    return base.Read(info, first, count);
  });
  source_->Invalidate();
}

void TrainingModel::SetTrained(const std::function<Tensor(const ParamInfo& param)>& read) {
  if (host_) host_->Finish();
  for (int unit = 0; unit < layout_.size(); ++unit) {
    const std::vector<ParamInfo>& params = whole_.units[unit].params;
    for (size_t i = 0; i < params.size(); ++i) {
      if (!params[i].trainable) continue;
      const Tensor value = read(params[i]);
      if (!value.defined()) continue;
      store_->Set(unit, static_cast<int>(i), PartOf(layout_.units[unit].params[i], value));
    }
  }
  source_->Invalidate();
}

void TrainingModel::LoadAdapter(const Adapter& adapter) {
  const std::map<std::string, Tensor> values = adapter.Values(layout_.tied_head());
  SetTrained([&](const ParamInfo& info) {
    const auto found = values.find(info.name);
    if (found == values.end() && info.of_base()) return Tensor();
    if (found == values.end() || found->second.sizes() != at::IntArrayRef(info.shape)) {
      throw UserError("the adapter holds no " + info.name + " of the shape that the job asks for",
                      "bad_adapter", "use an adapter with the job's r and target_modules");
    }
    return found->second;
  });
}

std::vector<HostOptimizer::PartInfo> TrainingModel::PartInfos() const {
  std::vector<int64_t> first_id;  // of each unit's parameters
  int64_t next_id = 0;
  for (const UnitInfo& unit : layout_.units) {
    first_id.push_back(next_id);
    next_id += static_cast<int64_t>(unit.params.size());
  }
  std::vector<HostOptimizer::PartInfo> infos;
  for (const TrainablePart& part : store_->parts()) {
    const ParamInfo& info = layout_.units[part.unit].params[part.param];
    infos.push_back({info.name, first_id[part.unit] + part.param, RuleOf(info, spec_)});
  }
  return infos;
}

void TrainingModel::MakeOptimizers() {
  const AdamWOptions options = AdamWOptionsOf(spec_);
  const auto& parts = store_->parts();
  const std::vector<HostOptimizer::PartInfo> infos = PartInfos();
  if (store_->masters_on_host()) {
    // Full fine-tuning moves as many gradients as weights, in one type; adapters are few.
    const at::ScalarType wire = spec_.full_finetune() ? compute_ : at::kFloat;
    host_ = std::make_unique<HostOptimizer>(*store_, infos, comm_.device(),
                                            HostOptimizer::Options{options, wire});
    return;
  }
  std::vector<OptimizerParam> params;
  std::vector<UpdateRule> rules;
  for (size_t i = 0; i < parts.size(); ++i) {
    const TrainablePart& part = parts[i];
    params.push_back({infos[i].name, part.master, part.copy, infos[i].id, part.first});
    rules.push_back(infos[i].rule);
  }
  adamw_ = std::make_unique<AdamWSet>(params, rules, options);
}

void TrainingModel::BeginStep() {
  gradients_ = nullptr;
  sink_->BeginStep();
}

Tensor TrainingModel::ForwardBackward(const MicroBatch& batch, int64_t step, int micro, bool last,
                                      const RowObjective& objective) {
  if (pipeline_) throw InternalError("a stage of a pipeline runs no micro-batch alone");
  sink_->BeginMicroBatch(last);
  const std::optional<DropoutKey> key = DropoutOf(step, micro);
  const bool recorded = decoder_->graphs() != nullptr;
  DeviceBatch on_device = recorded ? ToDevice(WithPadding(batch), comm_.device()) : ShareOf(batch);
  on_device.objective = objective;
  Tensor loss = decoder_->ForwardBackward(on_device, key ? &*key : nullptr, *sink_);
  // The gradients that the host's optimizer had still to read would be gone.
  if (host_ && host_->pending()) throw InternalError("a forward left trained weights unused");
  return loss;
}

std::optional<DropoutKey> TrainingModel::DropoutOf(int64_t step, int micro) const {
  if (!draws()) return std::nullopt;
  // Ranks that share matrices have other tokens, or other columns of all.
  return DropoutKey::Of(spec_.hyperparameters.seed, step, micro,
                        mesh_.shape().Index(comm_.rank(), kTokenAxes.With(Axis::kTensor)));
}

std::vector<Tensor> TrainingModel::RunMicroBatches(int micro_batches, int64_t step,
                                                   const BatchOf& batch_of,
                                                   const ObjectiveOf& objective_of) {
  if (pipeline_) {
    return pipeline_->Train(
        micro_batches, [&](int micro) { return ShareOf(batch_of(micro)); },
        [&](int micro) { return DropoutOf(step, micro); }, *sink_);
  }
  std::vector<Tensor> losses;
  for (int micro = 0; micro < micro_batches; ++micro) {
    const PhaseSpan span("micro-batch", micro + 1);
    const MicroBatch batch = batch_of(micro);
    losses.push_back(ForwardBackward(batch, step, micro, micro + 1 == micro_batches,
                                     objective_of ? objective_of(batch) : RowObjective()));
  }
  return losses;
}

void TrainingModel::ConnectCopies() {
  const std::vector<int> stages = layout_.StagesOf(0, 0);
  const bool trained = layout_.units[0].params[0].trainable;
  if (!trained || stages.size() == 1) return;
  const std::vector<ParamInfo>& params = layout_.units[0].params;
  const auto is_trained = [](const ParamInfo& param) { return param.trainable; };
  const bool cut = CutOver(mesh_).world() > 1 && store_->placement() != Placement::kReplicated;
  if (cut && std::count_if(params.begin(), params.end(), is_trained) > 1) {
    throw UserError(
        "a pipeline cannot divide this model's optimizer over ranks too: its embedding, which is "
        "also its head, is trained together with tables that the last stage does not have",
        "bad_model", "use fsdp = false without use_deepspeed, or leave the pipeline out");
  }
  if (std::find(stages.begin(), stages.end(), layout_.stage) == stages.end()) return;
  copies_ = MakeSubgroup(mesh_.Group(Axis::kPipeline), stages);
  copies_->NameAxis(NameOf(Axis::kPipeline));
}

void TrainingModel::SumCopies() {
  if (copies_ == nullptr) return;
  for (size_t i = 0; i < gradients_->size(); ++i) {
    if (placements_[i].stages.size() > 1) copies_->AllReduceSum((*gradients_)[i]);
  }
}

void TrainingModel::PlaceParts() {
  for (const TrainablePart& part : store_->parts()) {
    placements_.push_back(PlacementOf(layout_, part.unit, part.param, store_->placement()));
    if (!placements_.back().Represents(mesh_.shape(), comm_.rank())) continue;
    saved_.insert(layout_.units[part.unit].params[part.param].name);
  }
}

double TrainingModel::ReduceGradients(double scale) {
  const PhaseSpan span("sum of gradients");
  gradients_ = &sink_->Reduce();
  SumCopies();
  shared_->Sum(*gradients_);
  std::vector<UnitGradient> parts;
  for (size_t i = 0; i < gradients_->size(); ++i) {
    // A copy on another stage is counted there; ranks of one stage count alike.
    if (placements_[i].stages.front() != layout_.stage) continue;
    if (!placements_[i].RepresentsSharers(mesh_.shape(), comm_.rank())) continue;
    parts.push_back({store_->parts()[i].unit, (*gradients_)[i]});
  }
  return scale * GlobalGradNorm(parts, mesh_.Group(Axis::kPipeline),
                                mesh_.Group(CutAxes(store_->placement()).With(Axis::kTensor)));
}

void TrainingModel::Update(double lr, double scale) {
  if (gradients_ == nullptr) throw InternalError("Update was called before ReduceGradients");
  const PhaseSpan span(kOptimizerSpan);
  if (host_) {
    host_->Begin(*gradients_, lr, scale);
  } else {
    adamw_->Step(*gradients_, lr, scale);
  }
  WeightsChanged();
}

const TrainableStore& TrainingModel::store() const {
  if (host_) host_->Finish();
  return *store_;
}

void TrainingModel::WeightsChanged() {
  // Weights that are whole on every rank come from all of them.
  if (host_ && store_->placement() == Placement::kShardedOptimizer) host_->Finish();
  store_->AfterUpdate();
  source_->Invalidate();
}

DeviceBatch TrainingModel::ShareOf(const MicroBatch& batch) const {
  if (mesh_.Size(Axis::kContext) > 1) {
    return ShareToDevice(batch, exchange_, mesh_.ContextOverNodes(), comm_.device());
  }
  if (sharers_.ranks() > 1) return ShareToDevice(batch, sharers_, comm_.device());
  return ToDevice(batch, comm_.device());
}

Tensor TrainingModel::Loss(const MicroBatch& batch) {
  if (pipeline_)
    return SumOfLosses(
        1, [&](int) { return batch; }, [] {});
  return decoder_->Loss(ShareOf(batch));
}

Tensor TrainingModel::SumOfLosses(int micro_batches, const BatchOf& batch_of,
                                  const std::function<void()>& alive) {
  Tensor sum = at::zeros({}, at::TensorOptions(comm_.device()).dtype(at::kDouble));
  if (pipeline_) {
    pipeline_->Forward(
        micro_batches,
        [&](int micro) {
          alive();
          return ShareOf(batch_of(micro));
        },
        [&](int, const DeviceBatch& batch, const Tensor& x) {
          sum.add_(decoder_->LossOf(batch, x));
        });
    return sum;
  }
  for (int micro = 0; micro < micro_batches; ++micro) {
    alive();
    sum.add_(Loss(batch_of(micro)));
  }
  return sum;
}

Tensor TrainingModel::RowLosses(const MicroBatch& batch) {
  return decoder_->RowLosses(ToDevice(batch, comm_.device()));
}

Tensor TrainingModel::Logits(const MicroBatch& batch, const std::vector<int64_t>& tokens) {
  const Tensor numbers =
      tokens.empty() ? Tensor() : at::tensor(tokens, at::kLong).to(comm_.device());
  if (pipeline_) {
    const int64_t rows = tokens.empty() ? batch.size() : static_cast<int64_t>(tokens.size());
    Tensor logits =
        at::empty({rows, config_.vocab}, at::TensorOptions(comm_.device()).dtype(compute_));
    pipeline_->Forward(
        1, [&](int) { return ToDevice(batch, comm_.device()); },
        [&](int, const DeviceBatch&, const Tensor& x) {
          logits.copy_(decoder_->LogitsOf(x, numbers));
        });
    pipeline_->BroadcastFromLast(logits);
    return logits;
  }
  if (sharers_.ranks() > 1) {
    PieceWalk walk = decoder_->Begin(ShareOf(batch), nullptr);
    const Tensor own = decoder_->ForwardPiece(decoder_->AllUnits(), walk, {}, /*keeps=*/false);
    return decoder_->LogitsOf(sharers_.Gather(own).narrow(0, 0, batch.size()), numbers);
  }
  return decoder_->Logits(ToDevice(batch, comm_.device()), numbers);
}

std::vector<Tensor> TrainingModel::Snapshot() const {
  std::vector<Tensor> snapshot;
  for (const TrainablePart& part : store().parts()) {
    snapshot.push_back(part.master.to(at::kCPU, part.master.scalar_type(), /*non_blocking=*/false,
                                      /*copy=*/true));
  }
  return snapshot;
}

void TrainingModel::Restore(const std::vector<Tensor>& snapshot) {
  if (host_) host_->Finish();
  for (size_t i = 0; i < snapshot.size(); ++i) store_->parts()[i].master.copy_(snapshot[i]);
  MastersChanged();
}

std::vector<AdamW*> TrainingModel::Optimizers() {
  if (host_) {
    host_->Finish();
    return host_->Optimizers();
  }
  return adamw_->All();
}

void TrainingModel::MastersChanged() {
  for (const TrainablePart& part : store_->parts()) {
    if (part.copy.defined()) part.copy.copy_(part.master);
  }
  WeightsChanged();
}

Tensor TrainingModel::GatherParts(int unit, int param, const Tensor& part) const {
  const ParamInfo& info = layout_.units[unit].params[param];
  if (info.cut.parts == 1) return part;
  Communicator& group = mesh_.Group(Axis::kTensor);
  const Tensor own = part.contiguous();
  const Tensor all = at::empty({group.world() * own.numel()}, own.options());
  group.AllGather(all, own.view({-1}));
  std::vector<Tensor> parts;
  for (int rank = 0; rank < group.world(); ++rank) {
    parts.push_back(all.narrow(0, rank * own.numel(), own.numel()).view(info.shape));
  }
  return WholeOf(info, parts);
}

Tensor TrainingModel::Gather(int unit, int param) const {
  Tensor whole = store().Gather(unit, param);
  if (sharers_.ranks() > 1) return GatherParts(unit, param, whole);
  if (pipeline_ == nullptr) return whole;
  const int owner = layout_.StagesOf(unit, param).front();
  if (layout_.stage != owner) {
    const at::TensorOptions options(comm_.device());
    whole = at::empty(layout_.units[unit].params[param].shape, options.dtype(MasterTypeOf(spec_)));
  }
  mesh_.Group(Axis::kPipeline).Broadcast(whole, owner);
  return whole;
}

}  // namespace sft::engine
