#include "worker/engine/dist/communicator.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "worker/engine/base/error.h"
#include "worker/engine/dist/gloo.h"
#include "worker/engine/dist/rendezvous.h"

namespace sft::engine {
namespace {

class LocalCommunicator : public Communicator {
 public:
  explicit LocalCommunicator(at::Device device) : device_(device) {}
  int rank() const override { return 0; }
  int world() const override { return 1; }
  at::Device device() const override { return device_; }
  std::string_view backend() const override { return "local"; }

  WorkPtr AllReduceSumAsync(at::Tensor) override { return std::make_unique<DoneWork>(); }
  WorkPtr AllGatherAsync(at::Tensor out, at::Tensor part, std::vector<int64_t> counts) override {
    return Copy(out, part, counts);
  }
  WorkPtr ReduceScatterSumAsync(at::Tensor part, at::Tensor in,
                                std::vector<int64_t> counts) override {
    return Copy(part, in, counts);
  }
  WorkPtr AllToAllAsync(at::Tensor out, at::Tensor in) override {
    return Copy(out, in, {out.numel()});
  }
  WorkPtr BroadcastAsync(at::Tensor, int) override { return std::make_unique<DoneWork>(); }
  WorkPtr SendAsync(at::Tensor, int) override { NoPeer(); }
  WorkPtr ReceiveAsync(at::Tensor, int) override { NoPeer(); }
  void Barrier() override {}
  std::unique_ptr<Communicator> Connect(const std::string&, const std::vector<int>&) override {
    return MakeLocalCommunicator(device_);
  }

 private:
  [[noreturn]] static void NoPeer() {
    throw InternalError("a world of one has nobody to send to or to receive from");
  }

  static WorkPtr Copy(const at::Tensor& to, const at::Tensor& from,
                      const std::vector<int64_t>& counts) {
    if (counts.size() != 1 || counts[0] != to.numel() || counts[0] != from.numel() ||
        to.scalar_type() != from.scalar_type()) {
      throw InternalError(
          fmt::format("a world of one gathers {} elements into {}", from.numel(), to.numel()));
    }
    if (to.numel() > 0 && to.data_ptr() != from.data_ptr()) to.view(-1).copy_(from.view(-1));
    return std::make_unique<DoneWork>();
  }

  at::Device device_;
};

using Registry = std::map<std::string, CommunicatorFactory, std::less<>>;

Registry& Factories() {
  static Registry registry{{"gloo", &MakeGlooCommunicator}};
  return registry;
}

[[noreturn]] void RefuseStart(const Communicator& comm, const char* operation) {
  throw InfrastructureError(
      fmt::format("rank {} of {}: the {} library returned a wrong {} at start", comm.rank(),
                  comm.world(), comm.backend(), operation),
      "collectives_broken",
      "The libraries of the ranks do not match: install the same bundle and the same torch on "
      "every "
      "node of the job.");
}

// Small enough to cost nothing, with more elements than ranks and parts of different length.
void VerifyCollectives(Communicator& comm) {
  const int world = comm.world();
  const auto floats = at::TensorOptions(at::kFloat).device(comm.device());
  const at::Tensor ramp = at::arange(1, 1001, floats);
  // Small factors: the sums of thousands of ranks are whole numbers that fp32 holds exactly.
  const auto factor = [](int rank) { return rank % 4 + 1; };
  at::Tensor sum = ramp * factor(comm.rank());
  comm.AllReduceSum(sum);
  int factors = 0;
  for (int rank = 0; rank < world; ++rank) factors += factor(rank);
  if (!sum.equal(ramp * factors)) RefuseStart(comm, "all-reduce");

  const std::vector<int64_t> counts = PartSizes(3 * world - 1, world, 3);
  const auto numbers = floats.dtype(at::kLong);
  const at::Tensor part = at::full({counts[comm.rank()]}, comm.rank() + 1, numbers);
  at::Tensor all = at::zeros({3 * world - 1}, numbers);
  comm.AllGather(all, part, counts);
  const at::Tensor expected = at::arange(0, 3 * world - 1, numbers).floor_divide(3).add_(1);
  if (!all.equal(expected)) RefuseStart(comm, "all-gather");
}

}  // namespace

std::unique_ptr<Communicator> MakeLocalCommunicator(at::Device device) {
  return std::make_unique<LocalCommunicator>(device);
}

void RegisterCommunicatorFactory(std::string_view backend, CommunicatorFactory factory) {
  Factories().insert_or_assign(std::string(backend), factory);
}

std::unique_ptr<Communicator> MakeCommunicator(const Rendezvous& rendezvous, at::Device device) {
  if (rendezvous.world() == 1) return MakeLocalCommunicator(device);
  const char* backend = device.is_cpu() ? "gloo" : "nccl";
  const auto factory = Factories().find(backend);
  if (factory == Factories().end()) {
    throw InternalError(
        fmt::format("no {} collectives in this process: the plugin libsft_cuda.so "
                    "was not opened before the ranks met",
                    backend));
  }
  auto comm = factory->second(rendezvous, device);
  VerifyCollectives(*comm);
  return comm;
}

std::unique_ptr<Communicator> MakeSubgroup(Communicator& comm, const std::vector<int>& members) {
  const auto inside = [&](int rank) { return rank >= 0 && rank < comm.world(); };
  if (!std::all_of(members.begin(), members.end(), inside) ||
      std::count(members.begin(), members.end(), comm.rank()) != 1) {
    throw InternalError(fmt::format("rank {} of {} cannot join the group of ranks {}", comm.rank(),
                                    comm.world(), fmt::join(members, ", ")));
  }
  if (members.size() == 1) return MakeLocalCommunicator(comm.device());
  const std::string list = fmt::format("{}", fmt::join(members, ","));
  auto group = comm.Connect(fmt::format("group/{}/{}", list, comm.groups_[list]++), members);
  VerifyCollectives(*group);
  return group;
}

std::vector<int64_t> PartSizes(int64_t total, int world, int64_t unit) {
  if (total < 0 || world < 1 || unit < 1) {
    throw InternalError(
        fmt::format("cannot cut {} elements over {} ranks in units of {}", total, world, unit));
  }
  const int64_t units = (total + unit - 1) / unit;
  const int64_t length = (units + world - 1) / world * unit;
  std::vector<int64_t> counts(world);
  for (int r = 0; r < world; ++r) {
    counts[r] = std::clamp<int64_t>(total - r * length, 0, length);
  }
  return counts;
}

std::vector<int64_t> AllGatherInt64(Communicator& comm, int64_t value) {
  const auto options = at::TensorOptions(at::kLong).device(comm.device());
  at::Tensor all = at::empty({comm.world()}, options);
  comm.AllGather(all, at::full({1}, value, options));
  const at::Tensor host = all.cpu();
  const int64_t* data = host.const_data_ptr<int64_t>();
  return {data, data + comm.world()};
}

double AllReduceSumDouble(Communicator& comm, double value) {
  const auto options = at::TensorOptions(at::kDouble).device(comm.device());
  at::Tensor all = at::empty({comm.world()}, options);
  comm.AllGather(all, at::full({1}, value, options));
  const at::Tensor host = all.cpu();
  const double* data = host.const_data_ptr<double>();
  return std::accumulate(data, data + comm.world(), 0.0);
}

std::vector<std::string> AllGatherStrings(Communicator& comm, std::string_view value) {
  const std::vector<int64_t> lengths = AllGatherInt64(comm, static_cast<int64_t>(value.size()));
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  if (longest == 0) return std::vector<std::string>(lengths.size());
  at::Tensor part = at::zeros({longest}, at::kByte);
  std::memcpy(part.data_ptr(), value.data(), value.size());
  part = part.to(comm.device());
  at::Tensor all = at::empty({part.numel() * comm.world()}, part.options());
  comm.AllGather(all, part);
  const at::Tensor host = all.cpu();
  const char* data = static_cast<const char*>(host.const_data_ptr());
  std::vector<std::string> result;
  for (int r = 0; r < comm.world(); ++r) {
    result.emplace_back(data + r * longest, static_cast<size_t>(lengths[static_cast<size_t>(r)]));
  }
  return result;
}

bool EqualOnAllRanks(Communicator& comm, std::string_view value) {
  const std::vector<std::string> all = AllGatherStrings(comm, value);
  return std::all_of(all.begin(), all.end(),
                     [&](const std::string& other) { return other == value; });
}

}  // namespace sft::engine
