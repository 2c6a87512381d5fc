#include "worker/engine/train/pipeline.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <deque>
#include <map>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "worker/engine/base/error.h"
#include "worker/engine/base/phase_span.h"

namespace sft::engine {

using at::Tensor;
using plan::Action;
using plan::ActionKind;

namespace {

// Sends of a group that may be under way behind the one that is waited for.
constexpr size_t kSendsUnderWay = 2;

}  // namespace

// One walk through a schedule.
class Pipeline::Run {
 public:
  Run(Pipeline& pipeline, plan::ScheduleKind kind, int micro_batches, const BatchOf& batch_of)
      : pipeline_(pipeline), batch_of_(batch_of), micro_batches_(micro_batches) {
    const plan::StageMap& stages = pipeline.layout_.stages;
    const plan::ScheduleShape shape{.kind = kind,
                                    .stages = stages.stages,
                                    .micro_batches = micro_batches,
                                    .pieces = stages.pieces_of_stage()};
    auto schedule = plan::MakeSchedule(shape);
    if (!schedule.ok()) throw InternalError(std::string(Message(schedule.status())));
    actions_ = std::move((*schedule)[static_cast<size_t>(pipeline.stage_)]);
  }

  void Train(const DropoutOf& dropout_of, GradientSink& sink, std::vector<Tensor>& losses) {
    dropout_of_ = &dropout_of;
    sink_ = &sink;
    Execute([&](const Action& action) {
      if (action.kind == ActionKind::kForward) {
        Forward(action, pipeline_.HasBackward(action.piece));
      } else {
        Backward(action, losses);
      }
    });
  }

  void ForwardOnly(const AtHead& at_head) {
    Execute([&](const Action& action) {
      const Tensor x = Forward(action, /*keeps=*/false);
      if (pipeline_.UnitsOf(action.piece).Contains(pipeline_.layout_.head_unit())) {
        at_head(action.micro, Walk(action).batch, x);
      }
      walks_.erase(KeyOf(action));
    });
  }

 private:
  using Key = std::pair<int, int>;  // piece and micro-batch
  struct Transfer {
    Action action;
    Tensor tensor;
    WorkPtr work;
  };
  static Key KeyOf(const Action& action) { return {action.piece, action.micro}; }

  template <typename Compute>
  void Execute(const Compute& compute) {
    for (size_t i = 0; i < actions_.size(); ++i) {
      const Action& action = actions_[i];
      if (action.is_send()) {
        Send(action);
      } else if (!action.is_message()) {
        PostReceives(i);
        const PhaseSpan span("micro-batch", action.micro + 1);
        compute(action);
      }
    }
    for (auto& [group, sends] : sends_) {
      for (Transfer& send : sends) Await(send);
    }
  }

  // Those up to the computation behind number `now`: they come while that one is under way. In the
  // first step none is ahead of what waits for it: on a GPU a receive occupies the device until its
  // message is there, and kernels that are called for the first time are loaded when the device has
  // nothing to do. Two stages would wait for each other.
  void PostReceives(size_t now) {
    size_t end = now;
    if (pipeline_.trained_) {
      ++end;
      while (end < actions_.size() && actions_[end].is_message()) ++end;
    }
    for (; posted_ < end; ++posted_) {
      const Action& action = actions_[posted_];
      if (!action.is_message() || action.is_send() || !Exists(action)) continue;
      PieceWalk& walk = Walk(action);
      Transfer message{action, pipeline_.RowsOf(walk.batch), nullptr};
      message.work = pipeline_.GroupOf(action).ReceiveAsync(message.tensor, 0);
      received_[{action.goes_forward(), KeyOf(action)}] = std::move(message);
    }
  }

  // A gradient is sent only where something before is trained.
  bool Exists(const Action& message) const {
    if (message.goes_forward()) return true;
    const int reader = message.is_send() ? message.piece - 1 : message.piece;
    return pipeline_.HasBackward(reader);
  }

  void Send(const Action& action) {
    const Tensor made = std::exchange(made_, Tensor());
    if (!Exists(action)) return;
    Tensor tensor = made.contiguous();
    Communicator& group = pipeline_.GroupOf(action);
    std::deque<Transfer>& sends = sends_[&group];
    WorkPtr work = group.SendAsync(tensor, 1);
    sends.push_back({action, std::move(tensor), std::move(work)});
    if (sends.size() <= kSendsUnderWay) return;
    Await(sends.front());
    sends.pop_front();
  }

  void Await(Transfer& message) const {
    try {
      message.work->Wait();
    } catch (const InfrastructureError& error) {
      const plan::StageMap& stages = pipeline_.layout_.stages;
      const Action& action = message.action;
      const bool sends = action.is_send();
      const int other = action.piece + (action.goes_forward() == sends ? 1 : -1);
      throw InfrastructureError(
          fmt::format("stage {} of {} waited for stage {} to {} the {} of micro-batch {}: {}",
                      pipeline_.stage_, stages.stages, other % stages.stages,
                      sends ? "take" : "send", action.goes_forward() ? "activations" : "gradient",
                      action.micro, error.what()),
          error.code(), error.advice());
    }
  }

  Tensor Received(bool forward, const Action& action) {
    auto message = received_.extract({forward, KeyOf(action)});
    if (message.empty()) return {};
    Await(message.mapped());
    return std::move(message.mapped().tensor);
  }

  // Of a message or of work: begun when it is first asked for.
  PieceWalk& Walk(const Action& action) {
    const auto found = walks_.find(KeyOf(action));
    if (found != walks_.end()) return found->second;
    std::optional<DropoutKey> dropout;
    if (dropout_of_ != nullptr) dropout = (*dropout_of_)(action.micro);
    PieceWalk walk =
        pipeline_.decoder_.Begin(batch_of_(action.micro), dropout ? &*dropout : nullptr);
    return walks_.emplace(KeyOf(action), std::move(walk)).first->second;
  }

  Tensor Forward(const Action& action, bool keeps) {
    Tensor x = Received(/*forward=*/true, action);
    PieceWalk& walk = Walk(action);
    const UnitRange units = pipeline_.UnitsOf(action.piece);
    x = pipeline_.decoder_.ForwardPiece(units, walk, std::move(x), keeps);
    if (!units.Contains(pipeline_.layout_.head_unit())) made_ = x;
    return x;
  }

  void Backward(const Action& action, std::vector<Tensor>& losses) {
    if (pipeline_.HasBackward(action.piece)) {
      sink_->BeginMicroBatch(action.micro + 1 == micro_batches_);
      Decoder::PieceGradients gradients =
          pipeline_.decoder_.BackwardPiece(pipeline_.UnitsOf(action.piece), Walk(action),
                                           Received(/*forward=*/false, action), *sink_);
      if (gradients.loss.defined()) {
        losses[static_cast<size_t>(action.micro)] = std::move(gradients.loss);
      }
      made_ = std::move(gradients.dx);
    }
    walks_.erase(KeyOf(action));
  }

  Pipeline& pipeline_;
  const BatchOf& batch_of_;
  const DropoutOf* dropout_of_ = nullptr;
  GradientSink* sink_ = nullptr;
  int micro_batches_;
  std::vector<Action> actions_;
  size_t posted_ = 0;  // actions whose receives, where they are some, were started
  std::map<Key, PieceWalk> walks_;
  std::map<std::pair<bool, Key>, Transfer> received_;  // forward or backward
  std::map<Communicator*, std::deque<Transfer>> sends_;
  Tensor made_;  // what the last computation made for another stage
};

Pipeline::Pipeline(const ModelLayout& layout, const Mesh& mesh, Decoder& decoder, const Row& row)
    : layout_(layout),
      mesh_(mesh),
      decoder_(decoder),
      row_(row),
      stage_(mesh.Coordinate(Axis::kPipeline)) {
  const int stages = layout.stages.stages;
  // Several pieces a stage: the last one's next is the first again.
  const int pairs = layout.stages.pieces_of_stage() > 1 ? stages : stages - 1;
  for (int first = 0; first < pairs; ++first) {
    const int second = (first + 1) % stages;
    if (stage_ != first && stage_ != second) continue;
    Links& links = stage_ == first ? next_ : previous_;
    Communicator& all = mesh.Group(Axis::kPipeline);
    links.forward = MakeSubgroup(all, {first, second});
    links.backward = MakeSubgroup(all, {second, first});
    links.forward->NameAxis(NameOf(Axis::kPipeline));
    links.backward->NameAxis(NameOf(Axis::kPipeline));
    // NCCL connects two ranks when both have called for their first message, and lets the callers
    // wait: here, where neither has anything else to do.
    const Tensor message = at::zeros({1}, at::TensorOptions(all.device()));
    if (stage_ == first) {
      links.forward->SendAsync(message, 1)->Wait();
      links.backward->ReceiveAsync(message, 0)->Wait();
    } else {
      links.forward->ReceiveAsync(message, 0)->Wait();
      links.backward->SendAsync(message, 1)->Wait();
    }
  }
}

// Both ends of a group end it at one time, since NCCL lets the first wait for the other: the last
// that was connected first. The first stage has its previous one last, where it has one.
Pipeline::~Pipeline() {
  Links* const latest = stage_ == 0 ? &previous_ : &next_;
  Links* const earlier = stage_ == 0 ? &next_ : &previous_;
  for (Links* links : {latest, earlier}) {
    links->backward.reset();
    links->forward.reset();
  }
}

UnitRange Pipeline::UnitsOf(int piece) const {
  const auto at = static_cast<size_t>(piece);
  return {layout_.stages.begins[at], layout_.stages.begins[at + 1]};
}

bool Pipeline::HasBackward(int piece) const {
  const UnitRange units = UnitsOf(piece);
  return units.Contains(layout_.head_unit()) || decoder_.NeedsGradient(units.last);
}

Tensor Pipeline::RowsOf(const DeviceBatch& batch) const {
  return at::empty({batch.size(), row_.columns},
                   at::TensorOptions(mesh_.world().device()).dtype(row_.type));
}

Communicator& Pipeline::GroupOf(const Action& message) const {
  switch (message.kind) {
    case ActionKind::kSendForward:
      return *next_.forward;
    case ActionKind::kReceiveForward:
      return *previous_.forward;
    case ActionKind::kSendBackward:
      return *previous_.backward;
    default:
      return *next_.backward;
  }
}

std::vector<Tensor> Pipeline::Train(int micro_batches, const BatchOf& batch_of,
                                    const DropoutOf& dropout_of, GradientSink& sink) {
  const Tensor nothing =
      at::zeros({}, at::TensorOptions(mesh_.world().device()).dtype(at::kDouble));
  std::vector<Tensor> losses(static_cast<size_t>(micro_batches), nothing);
  Run(*this, plan::ScheduleKind::kOneForwardOneBackward, micro_batches, batch_of)
      .Train(dropout_of, sink, losses);
  trained_ = true;
  return losses;
}

void Pipeline::Forward(int micro_batches, const BatchOf& batch_of, const AtHead& at_head) {
  Run(*this, plan::ScheduleKind::kForwardOnly, micro_batches, batch_of).ForwardOnly(at_head);
}

void Pipeline::BroadcastFromLast(Tensor tensor) const {
  mesh_.Group(Axis::kPipeline).Broadcast(std::move(tensor), layout_.stages.stages - 1);
}

}  // namespace sft::engine
