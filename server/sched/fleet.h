#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "server/sched/places.h"
#include "server/sched/profile.h"
#include "server/sched/snapshot.h"

namespace sft::server::sched {

// The slots of one type on one node.
struct Bin {
  const NodeView* node = nullptr;
  int host = 0;  // index of the node
  int total = 0, sick = 0;
  std::vector<int> free;             // healthy and free; taken from the front
  std::vector<std::string> holders;  // jobs that hold slots, in slot order, each once

  int healthy() const { return total - sick; }
};

// A job's requirements on a node; jobs with equal requirements share it.
struct Shape {
  int type = -1;  // index of the slot type; -1: no node has it
  int gpus_per_node = 1, nodes = 1;
  bool exclusive = false;
  bool resumes = true;
  std::vector<int> all;     // all bins of the type
  std::vector<int> able;    // those that could hold the job if nothing else ran
  std::vector<int> pinned;  // a subset of able in the requested order; empty: any order
  // The sft-rank that all nodes of a gang over several run: the one that most able nodes have.
  std::string rank_build;
  std::vector<int> any_build;  // able, or able but for another sft-rank
  // Those that could as soon as their nodes are back (NodeView::returning).
  std::vector<int> returning;
  std::vector<int> without_model;  // of able, those that have to download the model first
  // Nodes that are left out are not used, because there are enough others.
  bool spares_left_out = false;

  bool possible() const { return static_cast<int>(able.size()) >= nodes; }
};

// The nodes of a snapshot with their free slots over time, indexed by slot type, so that a job
// considers only nodes with its type. Times in Fit and Take are absolute.
class Fleet {
 public:
  explicit Fleet(const Snapshot& snapshot);
  Fleet(const Fleet&) = delete;

  const Shape& ShapeOf(const PendingJob& job);
  const Bin& bin(int index) const { return bins_[static_cast<size_t>(index)]; }
  int types() const { return static_cast<int>(by_type_.size()); }
  // -1 when no node has the type.
  int TypeOf(std::string_view gpu_type) const;
  // The bin of a node; -1 when there is none.
  int BinOf(std::string_view node, int type) const;

  // A time and place at which a gang could start.
  struct Fit {
    int64_t start = kForever;
    std::vector<int> bins;  // in node rank order
  };
  // The earliest time at which `shape` fits for `duration`; among the places at that time, the one
  // on nodes with the fewest slots left over, close together if possible, and with `avoid` last.
  Fit Earliest(const Shape& shape, int64_t duration, std::string_view avoid) const;
  // A place for now, or none (kForever).
  Fit Now(const Shape& shape, int64_t duration, std::string_view avoid) const;
  bool FitsAt(const Shape& shape, const std::vector<int>& bins, int64_t start,
              int64_t duration) const;
  // Takes the slots that a gang of `shape` needs on `bins` in [start, start + duration); Give
  // undoes it.
  void Take(const Shape& shape, const std::vector<int>& bins, int64_t start, int64_t duration) {
    Change(shape, bins, start, duration, 1);
  }
  void Give(const Shape& shape, const std::vector<int>& bins, int64_t start, int64_t duration) {
    Change(shape, bins, start, duration, -1);
  }
  // Takes concrete slots of a bin for a gang that starts now.
  std::vector<int> Claim(const Shape& shape, int bin, const std::string& job);
  // Marks slots that are held now as held until `until`; with `exclusive` all of the bin's nodes
  // are.
  void Hold(int bin, int count, bool exclusive, int64_t until);
  // Slots held until `to` are now held only until `from`; a negative count undoes it.
  void Shorten(int bin, int count, bool exclusive, int64_t from, int64_t to);

 private:
  using Key = std::tuple<std::string_view, int, int, bool, std::string_view, int, bool,
                         std::vector<std::string>, bool, bool>;
  void MakeBins(const Snapshot& snapshot);
  Shape MakeShape(const PendingJob& job);
  // The `bins` whose nodes run the most common build among them, which goes to `build`.
  std::vector<int> OfOneBuild(const std::vector<int>& bins, std::string& build) const;
  // Nodes that have the model.
  const std::vector<bool>& HostsWith(std::string_view model);
  // Whether the job may run where its model has to be downloaded first.
  bool MayDownload(const PendingJob& job);
  // The number of slots that must be free for the shape on a bin, and the profile that counts them.
  const Profile& ProfileOf(const Shape& shape, int bin) const;
  int CountOf(const Shape& shape, int bin) const;
  // How long the shape needs a bin whose node may leave before the job ends.
  int64_t StayOn(const Shape& shape, int bin, int64_t duration) const;
  // Profile::Earliest of the shape on a bin.
  int64_t EarliestOn(const Shape& shape, int bin, int64_t from, int64_t duration) const;
  void Change(const Shape& shape, const std::vector<int>& bins, int64_t start, int64_t duration,
              int sign);
  std::vector<int> Choose(const Shape& shape, std::vector<int> fitting, int64_t start,
                          std::string_view avoid) const;

  const Snapshot& snapshot_;
  std::vector<Bin> bins_;
  std::vector<Profile> profiles_;  // by bin
  std::vector<Profile> whole_;     // by node: its slots of all types together
  std::vector<int> whole_total_;   // by node: healthy slots of all types
  std::vector<int> by_name_;       // by node: its rank in alphabetical order
  PlaceTree places_;
  std::vector<std::vector<int>> by_type_, of_host_;
  std::map<std::string_view, int> types_, hosts_;
  std::map<std::string_view, std::vector<bool>> models_;
  std::map<Key, Shape> shapes_;
};

}  // namespace sft::server::sched
