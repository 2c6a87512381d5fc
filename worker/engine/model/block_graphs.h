#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "worker/engine/kernels/batch_shape.h"
#include "worker/engine/kernels/graph.h"
#include "worker/engine/model/decoder_block.h"
#include "worker/engine/nn/batch.h"

namespace sft::engine {

// The blocks of a decoder as recordings (kernels/graph.h), a pair for each shape of micro-batch: a
// micro-batch then costs the host two launches instead of some hundred a block. The first two of a
// shape run as they are: after the second, when libraries have chosen and loaded what they need,
// the shape is recorded. Both ways give the same bits.
//
// The blocks have memory of their own: once what they keep and pass through for the largest shape,
// whatever the number of shapes. Thread-compatible.
class BlockGraphs {
 public:
  // A micro-batch on its way through the blocks. Its tensors lie where those of the last one of its
  // shape lay.
  struct Walk {
    DeviceBatch batch;  // positions, cu_seqlens and lengths
    at::Tensor x;       // [T, H]: what the first block reads, for the caller to fill
    at::Tensor y;       // [T, H]: what the last one writes
    at::Tensor dx;      // rows [T, H]: the gradient of y, in its place then that of x
    // From the forward to the backward.
    BlockContext context;
    std::vector<DecoderBlock::Saved> saved;
  };
  // The two functions that are recorded. Each does the same for all micro-batches of a shape
  // (GraphRecorder).
  struct Work {
    std::function<void(Walk&)> forward;
    std::function<void(Walk&)> backward;  // lets go of `context` and `saved`
  };

  // `hidden`: rows [.., H] like those that blocks read; `gradient_spare`: columns to spare in the
  // rows of dx.
  BlockGraphs(std::unique_ptr<GraphRecorder> recorder, Work work, const at::Tensor& hidden,
              int64_t gradient_spare);
  ~BlockGraphs();

  // Starts a micro-batch; the walk is valid until the next Begin.
  Walk& Begin(const DeviceBatch& batch);
  // Run the micro-batch begun: Forward once, then Backward.
  void Forward();
  void Backward();

  // Driver and host keep some kilobytes for each kernel of a recording. Micro-batches of further
  // shapes run as they are, which stderr tells once.
  static constexpr size_t kMostShapes = 32;
  size_t shapes() const { return recorded_.size(); }

 private:
  struct Recorded {
    Walk walk;
    std::unique_ptr<Graph> forward, backward;
  };

  bool HasRoom();
  void Record(const BatchShape& shape);
  void Allocate(const BatchShape& shape, Walk& walk);
  // The first `rows` of a buffer that all shapes share; where it has too few, of a new one.
  at::Tensor Share(at::Tensor& buffer, int64_t rows, int64_t spare) const;

  std::unique_ptr<GraphRecorder> recorder_;
  Work work_;
  at::Tensor hidden_;
  int64_t gradient_spare_;
  at::Tensor x_, y_, dx_;
  std::set<BatchShape> seen_;  // at least once
  std::map<BatchShape, Recorded> recorded_;
  Recorded fresh_;  // of a shape that is not recorded: the walk alone
  Recorded* current_ = nullptr;
  bool full_ = false;  // and it has been told
};

}  // namespace sft::engine
