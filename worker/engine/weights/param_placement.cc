#include "worker/engine/weights/param_placement.h"

namespace sft::engine {

bool ParamPlacement::Represents(const MeshShape& shape, int rank) const {
  if (shape.Coordinate(rank, Axis::kPipeline) != stages.front()) return false;
  for (const Axis axis : {Axis::kReplicate, Axis::kShard, Axis::kContext}) {
    if (!cut.Has(axis) && shape.Coordinate(rank, axis) != 0) return false;
  }
  return RepresentsSharers(shape, rank);
}

bool ParamPlacement::RepresentsSharers(const MeshShape& shape, int rank) const {
  return shape.Coordinate(rank, Axis::kTensor) % sharers == 0;
}

AxisSet CutAxes(Placement placement) {
  if (placement == Placement::kReplicated) return {};
  return {Axis::kShard, Axis::kContext};
}

ParamPlacement PlacementOf(const ModelLayout& layout, int unit, int param, Placement placement) {
  const TensorCut& of_tensor = layout.units[unit].params[param].cut;
  return {layout.StagesOf(unit, param), CutAxes(placement), kTokenAxes, of_tensor.sharers()};
}

}  // namespace sft::engine
