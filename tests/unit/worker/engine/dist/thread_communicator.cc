#include "tests/unit/worker/engine/dist/thread_communicator.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

using at::Tensor;

// What a rank brings to a collective.
struct Offer {
  Tensor in, out;
};

using Operation = std::function<void(const std::vector<Offer>&)>;

// From a rank to another, or -1 for all; and which of those it is.
using Key = std::tuple<int, int, int64_t>;

// One collective, which is done when all that belong to it have come.
struct Meeting {
  std::string name;
  std::vector<Offer> offers;
  size_t missing = 0;
  bool done = false;
};

// Shared by the communicators of a group.
class Group {
 public:
  Group(int world, std::chrono::milliseconds timeout) : world_(world), timeout_(timeout) {}

  int world() const { return world_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  // Comes to the meeting `key` of `members` ranks as its `place`th, and does `operation` if nobody
  // is missing then.
  std::shared_ptr<Meeting> Come(const Key& key, const std::string& name, int members, int place,
                                Offer offer, const Operation& operation) {
    std::unique_lock lock(mutex_);
    std::shared_ptr<Meeting>& slot = meetings_[key];
    if (slot == nullptr) {
      slot = std::make_shared<Meeting>();
      slot->name = name;
      slot->offers.resize(members);
      slot->missing = members;
    }
    const std::shared_ptr<Meeting> meeting = slot;
    if (meeting->name != name) {
      throw InternalError(
          fmt::format("one rank calls {} where another calls {}", name, meeting->name));
    }
    meeting->offers[place] = std::move(offer);
    if (--meeting->missing > 0) return meeting;
    meetings_.erase(key);
    lock.unlock();
    const at::NoGradGuard no_grad;
    operation(meeting->offers);
    meeting->offers.clear();
    lock.lock();
    meeting->done = true;
    changed_.notify_all();
    return meeting;
  }

  void Wait(const Meeting& meeting) {
    std::unique_lock lock(mutex_);
    const bool in_time =
        changed_.wait_for(lock, timeout_, [&] { return meeting.done || somebody_left_; });
    if (meeting.done) return;
    throw InfrastructureError(
        fmt::format("{}: {}", meeting.name, in_time ? "a rank has left" : "a rank did not come"),
        "collective_failed");
  }

  void Leave() {
    const std::lock_guard lock(mutex_);
    somebody_left_ = true;
    changed_.notify_all();
  }

  // The group `name` of `world` of these ranks, one for all who ask.
  std::shared_ptr<Group> Sub(const std::string& name, int world) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Group>& group = groups_[name];
    if (group == nullptr) group = std::make_shared<Group>(world, timeout_);
    return group;
  }

 private:
  const int world_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::shared_ptr<Meeting>> meetings_;  // that somebody is missing from
  std::map<std::string, std::shared_ptr<Group>> groups_;
  bool somebody_left_ = false;
};

class MeetingWork : public Work {
 public:
  MeetingWork(std::shared_ptr<Group> group, std::shared_ptr<Meeting> meeting)
      : group_(std::move(group)), meeting_(std::move(meeting)) {}
  ~MeetingWork() override {
    try {
      Wait();
    } catch (const std::exception&) {
      // The error of a collective that nobody waited for has no one to go to.
    }
  }
  void Wait() override {
    if (const auto meeting = std::exchange(meeting_, nullptr)) group_->Wait(*meeting);
  }

 private:
  std::shared_ptr<Group> group_;
  std::shared_ptr<Meeting> meeting_;
};

Tensor SumOf(const std::vector<Offer>& offers) {
  Tensor sum = offers[0].in.clone();
  for (size_t r = 1; r < offers.size(); ++r) sum.add_(offers[r].in);
  return sum;
}

void Put(const Tensor& to, const Tensor& from) {
  if (to.numel() > 0 && to.data_ptr() != from.data_ptr()) to.copy_(from);
}

// The part of a flat tensor that is rank's by the counts.
Tensor PartOf(const Tensor& flat, const std::vector<int64_t>& counts, size_t rank) {
  const auto begin = counts.begin();
  return flat.narrow(0, std::accumulate(begin, begin + static_cast<int64_t>(rank), int64_t{0}),
                     counts[rank]);
}

Tensor Flat(const Tensor& tensor) {
  if (tensor.is_cpu() && tensor.is_contiguous()) return tensor.view(-1);
  throw InternalError("tensors of collectives must be contiguous and on the CPU");
}

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, int rank)
      : rank_(rank), group_(std::move(group)) {}
  ~ThreadCommunicator() override { group_->Leave(); }

  int rank() const override { return rank_; }
  int world() const override { return group_->world(); }
  at::Device device() const override { return at::kCPU; }
  std::string_view backend() const override { return "threads"; }

  WorkPtr AllReduceSumAsync(Tensor tensor) override {
    const Tensor flat = Flat(tensor);
    return All("all-reduce", flat.numel(), {flat, flat}, [](const std::vector<Offer>& offers) {
      const Tensor sum = SumOf(offers);
      for (const Offer& offer : offers) offer.out.copy_(sum);
    });
  }

  WorkPtr AllGatherAsync(Tensor out, Tensor part, std::vector<int64_t> counts) override {
    Check(out, part, counts);
    return All("all-gather", out.numel(), {Flat(part), Flat(out)},
               [counts = std::move(counts)](const std::vector<Offer>& offers) {
                 for (const Offer& to : offers) {
                   for (size_t r = 0; r < offers.size(); ++r) {
                     Put(PartOf(to.out, counts, r), offers[r].in);
                   }
                 }
               });
  }

  WorkPtr ReduceScatterSumAsync(Tensor part, Tensor in, std::vector<int64_t> counts) override {
    Check(in, part, counts);
    return All("reduce-scatter", in.numel(), {Flat(in), Flat(part)},
               [counts = std::move(counts)](const std::vector<Offer>& offers) {
                 const Tensor sum = SumOf(offers);
                 for (size_t r = 0; r < offers.size(); ++r) {
                   Put(offers[r].out, PartOf(sum, counts, r));
                 }
               });
  }

  WorkPtr AllToAllAsync(Tensor out, Tensor in) override {
    if (out.numel() != in.numel() || in.numel() % world() != 0 ||
        out.scalar_type() != in.scalar_type()) {
      throw InternalError("the tensors of an all-to-all do not fit");
    }
    return All("all-to-all", in.numel(), {Flat(in), Flat(out)},
               [](const std::vector<Offer>& offers) {
                 const std::vector<int64_t> counts(
                     offers.size(), offers[0].in.numel() / static_cast<int64_t>(offers.size()));
                 for (size_t to = 0; to < offers.size(); ++to) {
                   for (size_t from = 0; from < offers.size(); ++from) {
                     Put(PartOf(offers[to].out, counts, from), PartOf(offers[from].in, counts, to));
                   }
                 }
               });
  }

  WorkPtr BroadcastAsync(Tensor tensor, int root) override {
    const Tensor flat = Flat(tensor);
    return All(fmt::format("broadcast of rank {}", root), flat.numel(), {flat, flat},
               [root](const std::vector<Offer>& offers) {
                 for (const Offer& offer : offers) Put(offer.out, offers[root].in);
               });
  }

  WorkPtr SendAsync(Tensor tensor, int to) override {
    return Message(rank_, to, sent_[to]++, 0, {Flat(tensor), {}});
  }
  WorkPtr ReceiveAsync(Tensor tensor, int from) override {
    return Message(from, rank_, received_[from]++, 1, {{}, Flat(tensor)});
  }

  void Barrier() override {
    All("barrier", 0, {}, [](const std::vector<Offer>&) {})->Wait();
  }

  std::unique_ptr<Communicator> Connect(const std::string& name,
                                        const std::vector<int>& members) override {
    const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
    return std::make_unique<ThreadCommunicator>(group_->Sub(name, static_cast<int>(members.size())),
                                                static_cast<int>(place));
  }

 private:
  void Check(const Tensor& whole, const Tensor& part, const std::vector<int64_t>& counts) const {
    const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    if (static_cast<int>(counts.size()) == world() && whole.scalar_type() == part.scalar_type() &&
        part.numel() == counts[rank_] && whole.numel() == sum) {
      return;
    }
    throw InternalError("the parts of a collective do not fit");
  }

  WorkPtr All(const std::string& operation, int64_t elements, Offer offer, const Operation& work) {
    return std::make_unique<MeetingWork>(
        group_, group_->Come({-1, -1, collectives_++},
                             fmt::format("{} of {} elements", operation, elements), world(), rank_,
                             std::move(offer), work));
  }

  WorkPtr Message(int from, int to, int64_t number, int place, Offer offer) {
    const int64_t elements = (place == 0 ? offer.in : offer.out).numel();
    return std::make_unique<MeetingWork>(
        group_, group_->Come({from, to, number}, fmt::format("message of {} elements", elements), 2,
                             place, std::move(offer), [](const std::vector<Offer>& offers) {
                               Put(offers[1].out, offers[0].in);
                             }));
  }

  const int rank_;
  const std::shared_ptr<Group> group_;
  int64_t collectives_ = 0;
  std::map<int, int64_t> sent_, received_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(
    int world, std::chrono::milliseconds timeout) {
  std::vector<std::unique_ptr<Communicator>> ranks;
  if (world == 1) {
    ranks.push_back(MakeLocalCommunicator(at::kCPU));
    return ranks;
  }
  const auto group = std::make_shared<Group>(world, timeout);
  for (int rank = 0; rank < world; ++rank) {
    ranks.push_back(std::make_unique<ThreadCommunicator>(group, rank));
  }
  return ranks;
}

}  // namespace sft::engine
