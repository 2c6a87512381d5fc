#include "worker/engine/weights/param_placement.h"

namespace sft::engine {

bool ParamPlacement::Represents(const MeshShape& shape, int rank) const {
  if (shape.Coordinate(rank, Axis::kPipeline) != stages.front()) return false;
  for (const Axis axis : {Axis::kReplicate, Axis::kShard, Axis::kContext, Axis::kTensor}) {
    if (!cut.Has(axis) && shape.Coordinate(rank, axis) != 0) return false;
  }
  return true;
}

AxisSet CutAxes(Placement placement) {
  if (placement == Placement::kReplicated) return {};
  return {Axis::kShard, Axis::kContext};
}

ParamPlacement PlacementOf(const ModelLayout& layout, int unit, int param, Placement placement) {
  return {layout.StagesOf(unit, param), CutAxes(placement), kTokenAxes};
}

}  // namespace sft::engine
