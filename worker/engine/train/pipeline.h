#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/plan/schedule.h"
#include "worker/engine/dist/mesh.h"
#include "worker/engine/model/decoder.h"
#include "worker/engine/weights/gradient_sink.h"

namespace sft::engine {

// This rank's stage of a pipeline: walks the schedule of a step (common/plan/schedule.h), runs the
// pieces of the model that it holds and passes what they read and write on to the stages of the
// pieces before and behind them. All stages have the micro-batches of a step, so that activations
// and their gradients alone travel, each way and between each two neighbours over a group of its
// own. Nothing that is summed is divided: the bits are those of one rank that holds all.
//
// Thread-compatible. Calls are collectives of the stages.
class Pipeline {
 public:
  // Micro-batch `micro` on the device.
  using BatchOf = std::function<DeviceBatch(int micro)>;
  using DropoutOf = std::function<std::optional<DropoutKey>(int micro)>;

  // `layout` is divided; connects the neighbours. Borrows its arguments.
  // `row`: the shape of a token's row between blocks, and its type.
  struct Row {
    int64_t columns = 0;
    at::ScalarType type = at::kFloat;
  };
  Pipeline(const ModelLayout& layout, const Mesh& mesh, Decoder& decoder, const Row& row);
  ~Pipeline();

  // Forward and backward of a step's micro-batches. The losses by micro-batch on the last stage,
  // fp64 scalars on the device; zeros on the others. Throws InfrastructureError naming the stage
  // and the micro-batch where a neighbour does not come.
  std::vector<at::Tensor> Train(int micro_batches, const BatchOf& batch_of,
                                const DropoutOf& dropout_of, GradientSink& sink);

  // Forward only: on the last stage `at_head` is given each micro-batch, in order, and what the
  // last block wrote of it.
  using AtHead = std::function<void(int micro, const DeviceBatch& batch, const at::Tensor& x)>;
  void Forward(int micro_batches, const BatchOf& batch_of, const AtHead& at_head);

  bool is_last() const { return stage_ == layout_.stages.stages - 1; }
  // The last stage's tensor, on all stages. `tensor` has its shape and type everywhere.
  void BroadcastFromLast(at::Tensor tensor) const;

 private:
  class Run;
  // To and from the neighbours, the sender first in each group; null where there is no message.
  struct Links {
    std::unique_ptr<Communicator> forward, backward;
  };
  UnitRange UnitsOf(int piece) const;
  // Room for what goes from piece to piece of a micro-batch.
  at::Tensor RowsOf(const DeviceBatch& batch) const;
  // The piece's backward has something to do.
  bool HasBackward(int piece) const;
  // The group over which this stage's end of a message goes.
  Communicator& GroupOf(const plan::Action& message) const;

  const ModelLayout& layout_;
  const Mesh& mesh_;
  Decoder& decoder_;
  Row row_;
  int stage_;
  bool trained_ = false;  // a step, once
  Links next_, previous_;
};

}  // namespace sft::engine
