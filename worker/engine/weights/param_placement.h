#pragma once

#include <vector>

#include "worker/engine/dist/mesh.h"
#include "worker/engine/weights/layout.h"
#include "worker/engine/weights/trainable_store.h"

namespace sft::engine {

// Where a trained parameter lies on the mesh. What a rank has to do about it follows from this and
// from nothing else: over whom its gradient is summed, who counts it in the norm, who saves it.
struct ParamPlacement {
  // Stages of the pipeline that hold it. Where there are several, each computes with it in another
  // place of the model, and its gradient is the sum of theirs.
  std::vector<int> stages;
  // Axes over which its master and states are divided, as a flat range of its unit's.
  AxisSet cut;
  // Axes whose ranks see other tokens with it: its gradient is the sum over them.
  AxisSet summed;
  // Consecutive ranks along the tensor axis that hold the same elements (TensorCut): its gradient
  // is the sum over them too.
  int sharers = 1;

  // Of the ranks that hold the same elements the first stands for all: it counts them in the norm
  // and saves them. True if that is `rank`, which holds some.
  bool Represents(const MeshShape& shape, int rank) const;
  // The same among the ranks along the tensor axis alone.
  bool RepresentsSharers(const MeshShape& shape, int rank) const;
};

// `placement`: how the job's trained weights are split.
ParamPlacement PlacementOf(const ModelLayout& layout, int unit, int param, Placement placement);

// The axes over which all trained weights, or their states, are divided.
AxisSet CutAxes(Placement placement);

}  // namespace sft::engine
