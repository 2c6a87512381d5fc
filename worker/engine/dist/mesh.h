#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "worker/engine/dist/communicator.h"

namespace sft::engine {

// The axes that the ranks of a job are laid out on, outermost first: ranks that differ in the last
// one have consecutive numbers, and so share a node as far as they can.
//
//   pipeline   each stage holds some consecutive layers
//   replicate  other rows, the same weights
//   shard      other rows, and a part of what is sharded
//   context    other tokens of the same rows; over several nodes in two groups (MeshShape)
//   tensor     other parts of each matrix, the same tokens
enum class Axis { kPipeline, kReplicate, kShard, kContext, kTensor };
inline constexpr int kAxes = 5;
std::string_view NameOf(Axis axis);

// Some of the axes.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= 1u << static_cast<int>(axis);
  }
  constexpr bool Has(Axis axis) const { return (bits_ >> static_cast<int>(axis) & 1u) != 0; }
  constexpr AxisSet With(Axis axis) const {
    AxisSet more = *this;
    more.bits_ |= 1u << static_cast<int>(axis);
    return more;
  }
  constexpr bool operator==(const AxisSet&) const = default;
  constexpr bool operator<(const AxisSet& other) const { return bits_ < other.bits_; }

 private:
  uint32_t bits_ = 0;
};

// Axes whose ranks take other rows, and those whose ranks see other tokens: over the last the
// gradient of a weight that all of them hold is a sum.
inline constexpr AxisSet kRowAxes = {Axis::kReplicate, Axis::kShard};
inline constexpr AxisSet kTokenAxes = {Axis::kReplicate, Axis::kShard, Axis::kContext};

// Ranks along each axis.
struct MeshShape {
  int pipeline = 1;
  int replicate = 1;
  int shard = 1;
  int context = 1;
  int tensor = 1;
  // How many nodes the context axis goes over; divides `context`. Ranks of a node are consecutive.
  int context_nodes = 1;

  int Size(Axis axis) const;
  int Size(AxisSet axes) const;
  int ranks() const { return pipeline * replicate * shard * context * tensor; }
  // The place of a rank along an axis.
  int Coordinate(int rank, Axis axis) const;
  // The number of a rank among those that differ from it in `axes` alone, in their order.
  int Index(int rank, AxisSet axes) const;
  // "pipeline 2 x shard 4"; "one rank".
  std::string ToText() const;
};

// The ranks of a job laid out on the axes, with the groups that they communicate in. A group is of
// the ranks that differ in some axes alone, in the order of their numbers. Thread-compatible.
class Mesh {
 public:
  // Connects the groups of all sets of axes that the engine communicates over: none, each axis,
  // kRowAxes and kTokenAxes, shard with context, and these with tensor; always in one order. A
  // group of all ranks is the world and equal groups are one. Then the two of context, where it
  // goes over several nodes. A collective; throws InternalError when the shape does not have the
  // world's ranks, else as MakeSubgroup. Borrows `world`.
  Mesh(Communicator& world, const MeshShape& shape);

  const MeshShape& shape() const { return shape_; }
  int Size(Axis axis) const { return shape_.Size(axis); }
  int Coordinate(Axis axis) const { return shape_.Coordinate(world_.rank(), axis); }

  Communicator& world() const { return world_; }
  // Of one rank alone where the axes have one rank. Throws InternalError for a set that was not
  // connected.
  Communicator& Group(AxisSet axes) const;
  Communicator& Group(Axis axis) const { return Group(AxisSet{axis}); }
  // The group of the context ranks in this rank's node, and that of those in its place in each
  // node.
  Communicator& ContextInNode() const { return *context_in_node_; }
  Communicator& ContextOverNodes() const { return *context_over_nodes_; }

  // Which rows a rank takes: its number among the ranks that take others, and how many there are.
  int row_rank() const { return shape_.Index(world_.rank(), kRowAxes); }
  int row_ranks() const { return shape_.Size(kRowAxes); }

 private:
  // The group of these ranks, this one among them.
  Communicator& Connect(const std::vector<int>& members, const std::string& name);

  Communicator& world_;
  MeshShape shape_;
  std::map<std::vector<int>, std::unique_ptr<Communicator>> groups_;  // by their ranks
  std::map<AxisSet, Communicator*> of_axes_;
  Communicator* context_in_node_ = nullptr;
  Communicator* context_over_nodes_ = nullptr;
};

}  // namespace sft::engine
