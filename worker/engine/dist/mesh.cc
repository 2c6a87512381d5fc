#include "worker/engine/dist/mesh.h"

#include <fmt/format.h>

#include <vector>

#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

constexpr Axis kAll[kAxes] = {Axis::kPipeline, Axis::kReplicate, Axis::kShard, Axis::kContext,
                              Axis::kTensor};

constexpr char kOverNodes[] = "context_nodes";

// In the order in which they are connected.
constexpr AxisSet kConnected[] = {AxisSet(),
                                  {Axis::kPipeline},
                                  {Axis::kReplicate},
                                  {Axis::kShard},
                                  {Axis::kContext},
                                  {Axis::kTensor},
                                  {Axis::kShard, Axis::kContext},
                                  {Axis::kShard, Axis::kContext, Axis::kTensor},
                                  kRowAxes,
                                  kTokenAxes};

// The ranks that differ from `rank` in `axes` alone.
std::vector<int> Members(const MeshShape& shape, int rank, AxisSet axes) {
  std::vector<int> members;
  for (int other = 0; other < shape.ranks(); ++other) {
    bool same = true;
    for (const Axis axis : kAll) {
      same =
          same && (axes.Has(axis) || shape.Coordinate(other, axis) == shape.Coordinate(rank, axis));
    }
    if (same) members.push_back(other);
  }
  return members;
}

constexpr AxisSet kEverything = {Axis::kPipeline, Axis::kReplicate, Axis::kShard, Axis::kContext,
                                 Axis::kTensor};

// Those of the axes that have several ranks: "shard", "shard+context"; "world" where none has.
std::string NameOf(const MeshShape& shape, AxisSet axes) {
  std::string name;
  for (const Axis axis : kAll) {
    if (!axes.Has(axis) || shape.Size(axis) == 1) continue;
    if (!name.empty()) name += "+";
    name += NameOf(axis);
  }
  return name.empty() ? "world" : name;
}

}  // namespace

std::string_view NameOf(Axis axis) {
  static constexpr std::string_view kNames[] = {"pipeline", "replicate", "shard", "context",
                                                "tensor"};
  return kNames[static_cast<int>(axis)];
}

int MeshShape::Size(Axis axis) const {
  const int sizes[kAxes] = {pipeline, replicate, shard, context, tensor};
  return sizes[static_cast<int>(axis)];
}

int MeshShape::Size(AxisSet axes) const {
  int size = 1;
  for (const Axis axis : kAll) size *= axes.Has(axis) ? Size(axis) : 1;
  return size;
}

int MeshShape::Coordinate(int rank, Axis axis) const {
  for (int i = kAxes - 1; kAll[i] != axis; --i) rank /= Size(kAll[i]);
  return rank % Size(axis);
}

int MeshShape::Index(int rank, AxisSet axes) const {
  int index = 0;
  for (const Axis axis : kAll) {
    if (axes.Has(axis)) index = index * Size(axis) + Coordinate(rank, axis);
  }
  return index;
}

std::string MeshShape::ToText() const {
  std::string text;
  for (const Axis axis : kAll) {
    if (Size(axis) == 1) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", NameOf(axis), Size(axis));
  }
  return text.empty() ? "one rank" : text;
}

Mesh::Mesh(Communicator& world, const MeshShape& shape) : world_(world), shape_(shape) {
  for (const Axis axis : kAll) {
    if (shape.Size(axis) < 1) {
      throw InternalError(fmt::format("a mesh of {} along {}", shape.Size(axis), NameOf(axis)));
    }
  }
  if (shape.ranks() != world.world()) {
    throw InternalError(
        fmt::format("{} ranks cannot be laid out as a mesh of {}", world.world(), shape.ToText()));
  }
  if (const std::string name = NameOf(shape, kEverything); name.find('+') == name.npos) {
    const bool nodes = shape.context > 1 && shape.context_nodes == shape.context;
    world.NameAxis(nodes ? kOverNodes : name);
  }
  if (shape.context % shape.context_nodes != 0) {
    throw InternalError(
        fmt::format("context {} over {} nodes", shape.context, shape.context_nodes));
  }
  for (const AxisSet axes : kConnected) {
    of_axes_[axes] = &Connect(Members(shape, world.rank(), axes), NameOf(shape, axes));
  }
  context_in_node_ = &Group(Axis::kContext);
  context_over_nodes_ = &Group(AxisSet());
  if (shape.context_nodes == 1) return;
  std::vector<int> in_node, over_nodes;
  const int ranks = shape.context / shape.context_nodes, place = Coordinate(Axis::kContext);
  for (const int other : Members(shape, world.rank(), {Axis::kContext})) {
    const int others = shape.Coordinate(other, Axis::kContext);
    if (others / ranks == place / ranks) in_node.push_back(other);
    if (others % ranks == place % ranks) over_nodes.push_back(other);
  }
  context_in_node_ = &Connect(in_node, "context");
  context_over_nodes_ = &Connect(over_nodes, kOverNodes);
}

Communicator& Mesh::Connect(const std::vector<int>& members, const std::string& name) {
  if (static_cast<int>(members.size()) == world_.world()) return world_;
  std::unique_ptr<Communicator>& group = groups_[members];
  if (group == nullptr) {
    group = MakeSubgroup(world_, members);
    group->NameAxis(name);
  }
  return *group;
}

Communicator& Mesh::Group(AxisSet axes) const {
  const auto found = of_axes_.find(axes);
  if (found == of_axes_.end()) throw InternalError("a group of axes that was not connected");
  return *found->second;
}

}  // namespace sft::engine
