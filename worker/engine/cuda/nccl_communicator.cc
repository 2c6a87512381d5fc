#include "worker/engine/cuda/nccl_communicator.h"

#include <c10/util/env.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <numeric>
#include <utility>

#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "worker/engine/base/error.h"
#include "worker/engine/cuda/network_interface.h"
#include "worker/engine/dist/rendezvous.h"

namespace sft::engine::cuda {
namespace {

// Keeps the tensors until the stream that needs the result has been told to wait for it.
class NcclWork : public Work {
 public:
  NcclWork(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> tensors)
      : work_(std::move(work)), tensors_(std::move(tensors)) {}
  // Orders the tensors' release behind the collective, as Wait does.
  ~NcclWork() override {
    if (!work_) return;
    try {
      work_->wait();
    } catch (const std::exception&) {
      // The error of a collective that nobody waited for has no one to go to.
    }
  }

  void Wait() override {
    if (const auto work = std::exchange(work_, nullptr)) work->wait();
    tensors_.clear();
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> tensors_;
};

// Uneven reduce-scatter sums each part where it lies in `in`: the own part is then copied out.
class CopiedWork : public NcclWork {
 public:
  CopiedWork(c10::intrusive_ptr<c10d::Work> work, at::Tensor to, at::Tensor from)
      : NcclWork(std::move(work), {to, from}), to_(std::move(to)), from_(std::move(from)) {}
  void Wait() override {
    NcclWork::Wait();
    if (to_.numel() > 0 && to_.data_ptr() != from_.data_ptr()) to_.copy_(from_);
  }

 private:
  at::Tensor to_, from_;
};

// Gathers and broadcasts move bytes, so that any type may travel, quantised bytes included.
at::Tensor Bytes(const at::Tensor& tensor) { return tensor.view(-1).view(at::kByte); }

bool AllEqual(const std::vector<int64_t>& counts) {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(c10::intrusive_ptr<c10d::Store> store, int rank, int world,
                   std::chrono::milliseconds timeout, at::Device device)
      : rank_(rank), world_(world), device_(device), timeout_(timeout), store_(std::move(store)) {
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    options->timeout = timeout_;
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>("nccl", store_);
    group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(prefixed, rank_, world_, options);
    // Connects now: a rank that cannot must fail at its start, not at its first gradient.
    group_->eagerConnectSingleDevice(device);
  }
  ~NcclCommunicator() override {
    try {
      group_->shutdown();
    } catch (const std::exception&) {
      // A rank on its way out after a failure: what failed has been said already.
    }
  }

  int rank() const override { return rank_; }
  int world() const override { return world_; }
  at::Device device() const override { return device_; }
  std::string_view backend() const override { return "nccl"; }

  WorkPtr AllReduceSumAsync(at::Tensor tensor) override {
    Check(tensor, "tensor of an all-reduce");
    if (tensor.numel() == 0) return std::make_unique<DoneWork>();
    std::vector<at::Tensor> tensors{tensor};
    return Start(
        "all-reduce", [&] { return group_->allreduce(tensors); }, tensors);
  }

  WorkPtr AllGatherAsync(at::Tensor out, at::Tensor part, std::vector<int64_t> counts) override {
    CheckParts(out, part, counts, "all-gather");
    if (out.numel() == 0) return std::make_unique<DoneWork>();
    at::Tensor out_bytes = Bytes(out), part_bytes = Bytes(part);
    if (AllEqual(counts)) {
      return Start("all-gather", [&] { return group_->_allgather_base(out_bytes, part_bytes); },
                   {out, part});
    }
    std::vector<at::Tensor> slots = Split(out_bytes, counts, out.element_size());
    if (part.numel() > 0 && slots[rank_].data_ptr() != part_bytes.data_ptr()) {
      slots[rank_].copy_(part_bytes);
    }
    return Start("all-gather",
                 [&] {
                   group_->startCoalescing();
                   for (int root = 0; root < world_; ++root) {
                     if (slots[root].numel() == 0) continue;
                     c10d::BroadcastOptions options;
                     options.rootRank = root;
                     group_->_broadcast_oop(slots[root], slots[root], options);
                   }
                   return group_->endCoalescing();
                 },
                 {out, part});
  }

  WorkPtr ReduceScatterSumAsync(at::Tensor part, at::Tensor in,
                                std::vector<int64_t> counts) override {
    CheckParts(in, part, counts, "reduce-scatter");
    if (in.numel() == 0) return std::make_unique<DoneWork>();
    at::Tensor flat = in.view(-1), flat_part = part.view(-1);
    if (AllEqual(counts)) {
      return Start("reduce-scatter", [&] { return group_->_reduce_scatter_base(flat_part, flat); },
                   {part, in});
    }
    std::vector<at::Tensor> slots = Split(flat, counts, 1);
    auto work = Guarded("reduce-scatter", [&] {
      group_->startCoalescing();
      for (int root = 0; root < world_; ++root) {
        if (slots[root].numel() == 0) continue;
        c10d::ReduceOptions options;
        options.rootRank = root;
        group_->_reduce_oop(slots[root], slots[root], options);
      }
      return group_->endCoalescing();
    });
    return std::make_unique<CopiedWork>(std::move(work), flat_part, slots[rank_]);
  }

  WorkPtr AllToAllAsync(at::Tensor out, at::Tensor in) override {
    CheckEqualParts(out, in, "all-to-all");
    if (in.numel() == 0) return std::make_unique<DoneWork>();
    at::Tensor out_bytes = Bytes(out), in_bytes = Bytes(in);
    std::vector<int64_t> equal;
    return Start("all-to-all",
                 [&] { return group_->alltoall_base(out_bytes, in_bytes, equal, equal); },
                 {out, in});
  }

  WorkPtr BroadcastAsync(at::Tensor tensor, int root) override {
    Check(tensor, "tensor of a broadcast");
    if (tensor.numel() == 0) return std::make_unique<DoneWork>();
    std::vector<at::Tensor> tensors{Bytes(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return Start("broadcast", [&] { return group_->broadcast(tensors, options); }, {tensor});
  }

  WorkPtr SendAsync(at::Tensor tensor, int to) override {
    Check(tensor, "tensor to send");
    if (tensor.numel() == 0) return std::make_unique<DoneWork>();
    std::vector<at::Tensor> tensors{Bytes(tensor)};
    return Start("send", [&] { return Message([&] { group_->send(tensors, to, 0); }); }, {tensor});
  }

  WorkPtr ReceiveAsync(at::Tensor tensor, int from) override {
    Check(tensor, "tensor to receive into");
    if (tensor.numel() == 0) return std::make_unique<DoneWork>();
    std::vector<at::Tensor> tensors{Bytes(tensor)};
    return Start("receive", [&] { return Message([&] { group_->recv(tensors, from, 0); }); },
                 {tensor});
  }

  void Barrier() override {
    c10d::BarrierOptions options;
    options.device = device_;
    Guarded("barrier", [&] {
      auto work = group_->barrier(options);
      work->wait();
      return work;
    });
  }

  std::unique_ptr<Communicator> Connect(const std::string& name,
                                        const std::vector<int>& members) override {
    const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
    return Connected(c10::make_intrusive<c10d::PrefixStore>(name, store_), static_cast<int>(place),
                     static_cast<int>(members.size()), timeout_, device_);
  }

  // Throws InfrastructureError.
  static std::unique_ptr<Communicator> Connected(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                 int world, std::chrono::milliseconds timeout,
                                                 at::Device device) {
    try {
      return std::make_unique<NcclCommunicator>(std::move(store), rank, world, timeout, device);
    } catch (const c10::Error& error) {
      throw InfrastructureError(
          fmt::format("NCCL initialization failed on rank {} of {} on {}: {}; visible devices: {}; "
                      "network interface: {}",
                      rank, world, device.str(), error.what_without_backtrace(),
                      c10::utils::get_env("CUDA_VISIBLE_DEVICES").value_or("all"),
                      c10::utils::get_env("NCCL_SOCKET_IFNAME").value_or("NCCL's choice")),
          "nccl_init_failed",
          "Check with nvidia-smi that the node has all of these devices, and that the interface "
          "reaches the other nodes (compute.network_interface, NCCL_SOCKET_IFNAME); "
          "compute.nccl_debug = \"INFO\" (NCCL_DEBUG) shows which connection NCCL could not make.");
    }
  }

 private:
  template <typename Function>
  static c10::intrusive_ptr<c10d::Work> Guarded(const char* operation, const Function& function) {
    try {
      return function();
    } catch (const c10::Error& error) {
      throw InfrastructureError(
          fmt::format("NCCL {} failed: {}", operation, error.what_without_backtrace()),
          "collective_failed",
          "Look at the logs of the other ranks first; NCCL_DEBUG=INFO says more.");
    }
  }

  // Between these two calls a message goes over the group's own connection; alone, LibTorch would
  // make another one at the first message, and ranks that make several in another order hang.
  template <typename Function>
  c10::intrusive_ptr<c10d::Work> Message(const Function& function) {
    group_->startCoalescing();
    function();
    return group_->endCoalescing();
  }

  template <typename Function>
  static WorkPtr Start(const char* operation, const Function& function,
                       std::vector<at::Tensor> tensors) {
    return std::make_unique<NcclWork>(Guarded(operation, function), std::move(tensors));
  }

  void Check(const at::Tensor& tensor, const char* what) const {
    if (tensor.device() == device_ && tensor.is_contiguous()) return;
    throw InternalError(fmt::format("the {} must be contiguous and on {}", what, device_.str()));
  }

  void CheckEqualParts(const at::Tensor& out, const at::Tensor& in, const char* operation) const {
    Check(out, operation);
    Check(in, operation);
    if (out.scalar_type() == in.scalar_type() && out.numel() == in.numel() &&
        in.numel() % world_ == 0) {
      return;
    }
    throw InternalError(fmt::format("{} on rank {}: {} elements cannot become {} in {} parts",
                                    operation, rank_, in.numel(), out.numel(), world_));
  }

  void CheckParts(const at::Tensor& whole, const at::Tensor& part,
                  const std::vector<int64_t>& counts, const char* operation) const {
    Check(whole, operation);
    Check(part, operation);
    const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    if (static_cast<int>(counts.size()) == world_ && whole.scalar_type() == part.scalar_type() &&
        part.numel() == counts[rank_] && whole.numel() == sum) {
      return;
    }
    throw InternalError(fmt::format(
        "{} on rank {}: {} counts with sum {} do not fit a whole of {} and a part of {} elements",
        operation, rank_, counts.size(), sum, whole.numel(), part.numel()));
  }

  // Views of the parts of `flat`, whose counts are in elements of `scale` of its own.
  static std::vector<at::Tensor> Split(const at::Tensor& flat, const std::vector<int64_t>& counts,
                                       int64_t scale) {
    std::vector<at::Tensor> slots;
    int64_t begin = 0;
    for (const int64_t count : counts) {
      slots.push_back(flat.narrow(0, begin, count * scale));
      begin += count * scale;
    }
    return slots;
  }

  int rank_;
  int world_;
  at::Device device_;
  std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
};

}  // namespace

std::unique_ptr<Communicator> MakeNcclCommunicator(const Rendezvous& rendezvous,
                                                   at::Device device) {
  UseInterfaceOf(rendezvous.bind());
  return NcclCommunicator::Connected(rendezvous.store(), rendezvous.rank(), rendezvous.world(),
                                     rendezvous.options().timeout, device);
}

}  // namespace sft::engine::cuda
