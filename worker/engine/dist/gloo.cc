#include "worker/engine/dist/gloo.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <net/if.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "worker/engine/base/error.h"
#include "worker/engine/dist/rendezvous.h"

namespace sft::engine {
namespace {

// What a failed collective says: Gloo's own text names sockets, not what the ranks were doing.
struct CollectiveName {
  const char* operation;
  int64_t sequence;
  int64_t elements;
  int rank;
  int world;
  int64_t timeout_s;
};

[[noreturn]] void ThrowFailed(const CollectiveName& name, const std::exception& cause) {
  throw InfrastructureError(
      fmt::format("{} (collective {}, {} elements) failed on rank {} of {}: {}", name.operation,
                  name.sequence, name.elements, name.rank, name.world, cause.what()),
      "collective_failed",
      fmt::format(
          "Another rank has ended, hangs or is not reachable: look at the logs of the other "
          "ranks first. A collective waits at most {} s.",
          name.timeout_s));
}

class GlooWork : public Work {
 public:
  GlooWork(c10::intrusive_ptr<c10d::Work> work, CollectiveName name)
      : work_(std::move(work)), name_(name) {}
  ~GlooWork() override {
    if (!work_) return;
    try {
      work_->wait();
    } catch (const std::exception&) {
      // The error of a collective that nobody waited for has no one to go to.
    }
  }
  void Wait() override {
    auto work = std::exchange(work_, nullptr);
    try {
      if (work) work->wait();
    } catch (const std::exception& error) {
      ThrowFailed(name_, error);
    }
    Finish();
  }

 protected:
  // Runs on the caller's thread once the data is there.
  virtual void Finish() {}

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  CollectiveName name_;
};

// All-gather of parts padded to the longest.
class PaddedGatherWork : public GlooWork {
 public:
  PaddedGatherWork(c10::intrusive_ptr<c10d::Work> work, CollectiveName name, at::Tensor padded,
                   at::Tensor out, std::vector<int64_t> counts)
      : GlooWork(std::move(work), name),
        padded_(std::move(padded)),
        out_(std::move(out)),
        counts_(std::move(counts)) {}

 protected:
  void Finish() override {
    const int64_t longest = padded_.numel() / static_cast<int64_t>(counts_.size());
    int64_t begin = 0;
    for (size_t r = 0; r < counts_.size(); ++r) {
      if (counts_[r] > 0) {
        out_.narrow(0, begin, counts_[r])
            .copy_(padded_.narrow(0, static_cast<int64_t>(r) * longest, counts_[r]));
      }
      begin += counts_[r];
    }
  }

 private:
  at::Tensor padded_, out_;
  std::vector<int64_t> counts_;
};

// Reduce-scatter as an all-reduce of which the own part is kept: what Gloo itself does, and the
// sums have the same bits as AllReduceSum's.
class SlicedReduceWork : public GlooWork {
 public:
  SlicedReduceWork(c10::intrusive_ptr<c10d::Work> work, CollectiveName name, at::Tensor slice,
                   at::Tensor part)
      : GlooWork(std::move(work), name), slice_(std::move(slice)), part_(std::move(part)) {}

 protected:
  void Finish() override {
    if (part_.numel() > 0 && part_.data_ptr() != slice_.data_ptr()) part_.copy_(slice_);
  }

 private:
  at::Tensor slice_, part_;
};

std::shared_ptr<::gloo::transport::Device> MakeDevice(const std::string& bind) {
  if (if_nametoindex(bind.c_str()) != 0) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(bind);
  }
  return c10d::ProcessGroupGloo::createDeviceForHostname(bind);
}

// Gathers and broadcasts move bytes: Gloo knows fewer types than the engine has.
at::Tensor Bytes(const at::Tensor& tensor) { return tensor.view(-1).view(at::kByte); }

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(c10::intrusive_ptr<c10d::Store> store, int rank, int world, std::string bind,
                   std::chrono::milliseconds timeout, at::Device device)
      : rank_(rank),
        world_(world),
        device_(device),
        bind_(std::move(bind)),
        timeout_(timeout),
        store_(std::move(store)) {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout_);
    options->devices = {MakeDevice(bind_)};
    options->threads = 2;
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>("gloo", store_);
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(prefixed, rank_, world_, options);
  }

  int rank() const override { return rank_; }
  int world() const override { return world_; }
  at::Device device() const override { return device_; }
  std::string_view backend() const override { return "gloo"; }

  WorkPtr AllReduceSumAsync(at::Tensor tensor) override {
    Check(tensor, "tensor of an all-reduce");
    if (tensor.numel() == 0) return std::make_unique<DoneWork>();
    const auto name = Name("all-reduce", tensor.numel());
    return Start(name, [&] {
      std::vector<at::Tensor> tensors{std::move(tensor)};
      return std::make_unique<GlooWork>(group_->allreduce(tensors), name);
    });
  }

  WorkPtr AllGatherAsync(at::Tensor out, at::Tensor part, std::vector<int64_t> counts) override {
    CheckParts(out, part, counts, "all-gather");
    const auto name = Name("all-gather", out.numel());
    if (out.numel() == 0) return std::make_unique<DoneWork>();
    for (int64_t& count : counts) count *= out.element_size();
    at::Tensor out_bytes = Bytes(out), part_bytes = Bytes(part);
    const int64_t longest = *std::max_element(counts.begin(), counts.end());
    const int64_t shortest = *std::min_element(counts.begin(), counts.end());
    // Gloo writes into `out` while it reads `part`: a part inside `out` is copied first.
    if (longest == shortest) {
      if (out.storage().is_alias_of(part.storage())) part_bytes = part_bytes.clone();
      return Start(name, [&] {
        return std::make_unique<GlooWork>(group_->_allgather_base(out_bytes, part_bytes), name);
      });
    }
    at::Tensor padded = at::empty({longest * world_}, out_bytes.options());
    at::Tensor mine = at::zeros({longest}, out_bytes.options());
    mine.narrow(0, 0, part_bytes.numel()).copy_(part_bytes);
    return Start(name, [&] {
      auto work = group_->_allgather_base(padded, mine);
      return std::make_unique<PaddedGatherWork>(std::move(work), name, padded, out_bytes,
                                                std::move(counts));
    });
  }

  WorkPtr ReduceScatterSumAsync(at::Tensor part, at::Tensor in,
                                std::vector<int64_t> counts) override {
    CheckParts(in, part, counts, "reduce-scatter");
    const auto name = Name("reduce-scatter", in.numel());
    if (in.numel() == 0) return std::make_unique<DoneWork>();
    const int64_t begin = std::accumulate(counts.begin(), counts.begin() + rank_, int64_t{0});
    at::Tensor slice = in.view(-1).narrow(0, begin, counts[rank_]);
    return Start(name, [&] {
      std::vector<at::Tensor> tensors{in};
      auto work = group_->allreduce(tensors);
      return std::make_unique<SlicedReduceWork>(std::move(work), name, slice, part.view(-1));
    });
  }

  WorkPtr AllToAllAsync(at::Tensor out, at::Tensor in) override {
    CheckEqualParts(out, in, "all-to-all");
    const auto name = Name("all-to-all", in.numel());
    if (in.numel() == 0) return std::make_unique<DoneWork>();
    return Start(name, [&] {
      at::Tensor out_bytes = Bytes(out), in_bytes = Bytes(in);
      std::vector<int64_t> equal;
      return std::make_unique<GlooWork>(group_->alltoall_base(out_bytes, in_bytes, equal, equal),
                                        name);
    });
  }

  WorkPtr BroadcastAsync(at::Tensor tensor, int root) override {
    Check(tensor, "tensor of a broadcast");
    if (tensor.numel() == 0) return std::make_unique<DoneWork>();
    const auto name = Name("broadcast", tensor.numel());
    return Start(name, [&] {
      c10d::BroadcastOptions options;
      options.rootRank = root;
      std::vector<at::Tensor> tensors{Bytes(tensor)};
      return std::make_unique<GlooWork>(group_->broadcast(tensors, options), name);
    });
  }

  WorkPtr SendAsync(at::Tensor tensor, int to) override {
    Check(tensor, "tensor to send");
    const auto name = Name("send", tensor.numel());
    if (tensor.numel() == 0) return std::make_unique<DoneWork>();
    return Start(name, [&] {
      std::vector<at::Tensor> tensors{Bytes(tensor)};
      return std::make_unique<GlooWork>(group_->send(tensors, to, kMessageTag), name);
    });
  }

  WorkPtr ReceiveAsync(at::Tensor tensor, int from) override {
    Check(tensor, "tensor to receive into");
    const auto name = Name("receive", tensor.numel());
    if (tensor.numel() == 0) return std::make_unique<DoneWork>();
    return Start(name, [&] {
      std::vector<at::Tensor> tensors{Bytes(tensor)};
      return std::make_unique<GlooWork>(group_->recv(tensors, from, kMessageTag), name);
    });
  }

  void Barrier() override {
    const auto name = Name("barrier", 0);
    Start(name, [&] { return std::make_unique<GlooWork>(group_->barrier(), name); })->Wait();
  }

  std::unique_ptr<Communicator> Connect(const std::string& name,
                                        const std::vector<int>& members) override {
    const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
    return Connected(c10::make_intrusive<c10d::PrefixStore>(name, store_), static_cast<int>(place),
                     static_cast<int>(members.size()), bind_, timeout_, device_);
  }

  // Throws InfrastructureError.
  static std::unique_ptr<Communicator> Connected(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                 int world, const std::string& bind,
                                                 std::chrono::milliseconds timeout,
                                                 at::Device device) {
    try {
      return std::make_unique<GlooCommunicator>(std::move(store), rank, world, bind, timeout,
                                                device);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw InfrastructureError(
          fmt::format("rank {} of {} could not connect to the other ranks over {}: {}", rank, world,
                      bind, error.what()),
          "connect_failed",
          "Check that the nodes of the job reach each other on this address and that no firewall "
          "closes the ports between them.");
    }
  }

 private:
  // Messages of a pair arrive in the order in which they were sent.
  static constexpr int kMessageTag = 0;

  template <typename Function>
  WorkPtr Start(const CollectiveName& name, Function&& function) {
    try {
      return function();
    } catch (const std::exception& error) {
      ThrowFailed(name, error);
    }
  }

  CollectiveName Name(const char* operation, int64_t elements) {
    return {operation, ++sequence_, elements, rank_, world_, timeout_.count() / 1000};
  }

  static void Check(const at::Tensor& tensor, const char* what) {
    if (tensor.is_cpu() && tensor.is_contiguous()) return;
    throw InternalError(fmt::format("the {} must be contiguous and on the CPU", what));
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

  int rank_;
  int world_;
  at::Device device_;
  std::string bind_;
  std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  int64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> MakeGlooCommunicator(const Rendezvous& rendezvous,
                                                   at::Device device) {
  return GlooCommunicator::Connected(rendezvous.store(), rendezvous.rank(), rendezvous.world(),
                                     rendezvous.bind(), rendezvous.options().timeout, device);
}

}  // namespace sft::engine
