#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

// Collectives between the ranks of a job: Gloo on CPUs (here), NCCL on GPUs (in the CUDA plugin).
//
// Every rank calls the same collectives in the same order. Results are deterministic: the order of
// summation depends on the world size and the tensor's size alone, and after a sum every rank holds
// the same bits. A collective that does not finish within the time-out, or whose peer has gone,
// throws InfrastructureError naming the collective, this rank and what to do.

namespace sft::engine {

class Rendezvous;

// A collective under way. The tensors given to it are kept alive by it and are not to be touched
// before Wait. Destroying a Work that was not waited for waits for it and drops its error.
class Work {
 public:
  virtual ~Work() = default;
  // Orders the result before what the caller does next: blocks on a CPU; on a GPU makes the current
  // stream wait. Call once.
  virtual void Wait() = 0;
};
using WorkPtr = std::unique_ptr<Work>;

// The handle of a collective that had nothing to do.
class DoneWork : public Work {
 public:
  void Wait() override {}
};

// Thread-compatible: one thread of the rank calls it. Tensors are contiguous and on device().
// Sums take fp32 or bf16 (and int64 and fp64 for counts and norms); gathers and broadcasts move
// bytes and take any type.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;
  virtual at::Device device() const = 0;
  // "gloo", "nccl"; "local" for a world of one.
  virtual std::string_view backend() const = 0;

  // tensor := sum of `tensor` over the ranks.
  [[nodiscard]] virtual WorkPtr AllReduceSumAsync(at::Tensor tensor) = 0;

  // out := the parts of all ranks one after the other. part holds counts[rank()] elements, out
  // their sum; counts are equal on all ranks and may differ from each other or be zero. out and
  // part have one type, and part may be the view of out at its own place.
  [[nodiscard]] virtual WorkPtr AllGatherAsync(at::Tensor out, at::Tensor part,
                                               std::vector<int64_t> counts) = 0;

  // part := this rank's part of the sum of `in` over the ranks; counts as in AllGatherAsync. The
  // content of `in` afterwards is undefined, but for a `part` that is the view of `in` at its
  // place.
  [[nodiscard]] virtual WorkPtr ReduceScatterSumAsync(at::Tensor part, at::Tensor in,
                                                      std::vector<int64_t> counts) = 0;

  // Part i of `out` := part r of rank i's `in`, where r is this rank: both are cut into world()
  // equal parts of one type, and do not overlap.
  [[nodiscard]] virtual WorkPtr AllToAllAsync(at::Tensor out, at::Tensor in) = 0;

  // tensor := root's tensor.
  [[nodiscard]] virtual WorkPtr BroadcastAsync(at::Tensor tensor, int root) = 0;

  // From one rank to another, in a group of two: every Send of one is met by a Receive of the other
  // with as many elements of the same type, in the same order. A send is done when the receiver has
  // taken it. Messages one way and messages the other way have a group each, since on a GPU they
  // would wait for each other in one.
  [[nodiscard]] virtual WorkPtr SendAsync(at::Tensor tensor, int to) = 0;
  [[nodiscard]] virtual WorkPtr ReceiveAsync(at::Tensor tensor, int from) = 0;

  // What the group is in the grid of ranks ("shard"), for those who count what it costs.
  virtual void NameAxis(std::string_view /*axis*/) {}

  // Returns when every rank has called it; the calling thread blocks, on a GPU too.
  virtual void Barrier() = 0;

  // Connects the ranks `members` in that order, this one among them. `name` is that group's alone.
  // MakeSubgroup calls it.
  virtual std::unique_ptr<Communicator> Connect(const std::string& name,
                                                const std::vector<int>& members) = 0;

  // The same, waited for.
  void AllReduceSum(at::Tensor tensor) { AllReduceSumAsync(std::move(tensor))->Wait(); }
  void AllGather(at::Tensor out, at::Tensor part, std::vector<int64_t> counts) {
    AllGatherAsync(std::move(out), std::move(part), std::move(counts))->Wait();
  }
  // Equal parts: out holds world() times part's elements.
  void AllGather(at::Tensor out, at::Tensor part) {
    std::vector<int64_t> counts(world(), part.numel());
    AllGather(std::move(out), std::move(part), std::move(counts));
  }
  void ReduceScatterSum(at::Tensor part, at::Tensor in, std::vector<int64_t> counts) {
    ReduceScatterSumAsync(std::move(part), std::move(in), std::move(counts))->Wait();
  }
  void AllToAll(at::Tensor out, at::Tensor in) {
    AllToAllAsync(std::move(out), std::move(in))->Wait();
  }
  void Broadcast(at::Tensor tensor, int root) { BroadcastAsync(std::move(tensor), root)->Wait(); }

 private:
  friend std::unique_ptr<Communicator> MakeSubgroup(Communicator& comm,
                                                    const std::vector<int>& members);
  std::map<std::string, int> groups_;  // made of a list of ranks so far
};

// A world of one on `device`: every collective is done at once, nothing is opened.
std::unique_ptr<Communicator> MakeLocalCommunicator(at::Device device);

// Makes the communicator of a backend. Called on every rank at once; throws InfrastructureError.
using CommunicatorFactory = std::unique_ptr<Communicator> (*)(const Rendezvous& rendezvous,
                                                              at::Device device);

// Adds or replaces a backend. The CUDA plugin registers "nccl" from its initialiser. Not safe to
// call beside MakeCommunicator.
void RegisterCommunicatorFactory(std::string_view backend, CommunicatorFactory factory);

// The backend for `device` ("gloo" for a CPU, "nccl" for a GPU) over a rendezvous that all ranks
// have joined; a world of one gets the local communicator. Checks one all-reduce and one all-gather
// before returning, so that ranks whose libraries do not match refuse to start instead of training
// on wrong sums. Throws InfrastructureError; InternalError when the backend was never registered.
std::unique_ptr<Communicator> MakeCommunicator(const Rendezvous& rendezvous, at::Device device);

// A communicator of some ranks of `comm`: member i is rank i of it. All members call it with one
// list; several groups that share no rank may be made at once, and a rank makes the groups it is in
// in the same order as the other members. A group of one gets the local communicator, any other is
// connected anew and checked as MakeCommunicator does. Throws InfrastructureError.
//
// On GPUs collectives of two groups may run at the same time: ranks start them in one order.
std::unique_ptr<Communicator> MakeSubgroup(Communicator& comm, const std::vector<int>& members);

// Sizes of the parts when `total` elements are cut over `world` ranks in multiples of `unit`: the
// first ranks get ceil(ceil(total / unit) / world) units each, the last ones what is left, possibly
// nothing.
std::vector<int64_t> PartSizes(int64_t total, int world, int64_t unit = 1);

// One number from each rank, in rank order.
std::vector<int64_t> AllGatherInt64(Communicator& comm, int64_t value);

// The sum of one number over the ranks, added in rank order.
double AllReduceSumDouble(Communicator& comm, double value);

// One string from each rank, in rank order.
std::vector<std::string> AllGatherStrings(Communicator& comm, std::string_view value);

// True if `value` is equal on all ranks. A collective.
bool EqualOnAllRanks(Communicator& comm, std::string_view value);

}  // namespace sft::engine
