#include "server/sched/preempt.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace sft::server::sched {
namespace {

using Victims = std::set<const RunningJob*>;

int SlotsOn(const RunningJob& job, const std::string& node) {
  for (const Part& part : job.parts) {
    if (part.node == node) return static_cast<int>(part.slots.size());
  }
  return 0;
}

// Slots of a bin that are free once `victims` have ended; the whole node for an exclusive job.
int FreeAfter(const Bin& bin, const Victims& victims, const std::vector<const RunningJob*>& there) {
  int free = static_cast<int>(bin.free.size());
  for (const RunningJob* job : there) {
    if (!victims.contains(job)) continue;
    if (job->exclusive) return bin.healthy();
    free += SlotsOn(*job, bin.node->name);
  }
  return std::min(free, bin.healthy());
}

class Search {
 public:
  Search(const PendingJob& job, const Shape& shape, const Fleet& fleet, const JobsByBin& jobs,
         int64_t now_us)
      : job_(job), shape_(shape), fleet_(fleet), jobs_(jobs), now_us_(now_us) {}

  Room Run() {
    Room room;
    std::vector<int> left = shape_.pinned.empty() ? shape_.able : shape_.pinned;
    Victims victims;
    for (int i = 0; i < shape_.nodes; ++i) {
      int best = -1;
      Offer least;
      for (const int bin : left) {
        Offer offer = OfferOf(bin, victims);
        if (offer.possible && (best < 0 || offer < least)) best = bin, least = std::move(offer);
      }
      if (best < 0) return {};
      victims.insert(least.victims.begin(), least.victims.end());
      room.bins.push_back(best);
      std::erase(left, best);
    }
    room.victims = Needed(room.bins, victims);
    return room;
  }

 private:
  // The cost of making a node free enough.
  struct Offer {
    bool possible = false;
    int64_t lost = 0;
    std::vector<const RunningJob*> victims;
    int free = 0;

    bool operator<(const Offer& other) const {
      return std::tuple(lost, victims.size(), free) <
             std::tuple(other.lost, other.victims.size(), other.free);
    }
  };

  const std::vector<const RunningJob*>& On(int bin) const {
    static const std::vector<const RunningJob*> none;
    const auto found = jobs_.find(bin);
    return found == jobs_.end() ? none : found->second;
  }
  int Wanted(int bin) const {
    return shape_.exclusive ? fleet_.bin(bin).healthy() : shape_.gpus_per_node;
  }
  bool MayStop(const RunningJob& running) const {
    return running.priority < job_.priority && running.preemptible && !running.stopping;
  }

  Offer OfferOf(int bin, const Victims& already) const {
    Offer offer;
    std::vector<const RunningJob*> candidates;
    for (const RunningJob* each : On(bin)) {
      if (MayStop(*each) && !already.contains(each)) candidates.push_back(each);
    }
    std::sort(candidates.begin(), candidates.end(), [&](const auto* a, const auto* b) {
      return std::tuple(a->priority, LostWork(*a, now_us_), a->id) <
             std::tuple(b->priority, LostWork(*b, now_us_), b->id);
    });
    Victims all = already;
    const Bin& place = fleet_.bin(bin);
    int free = FreeAfter(place, all, On(bin));
    for (const RunningJob* each : candidates) {
      if (free >= Wanted(bin)) break;
      all.insert(each);
      offer.victims.push_back(each);
      offer.lost += LostWork(*each, now_us_);
      free = FreeAfter(place, all, On(bin));
    }
    offer.possible = free >= Wanted(bin);
    offer.free = free;
    return offer;
  }

  // Drops victims that are not needed, the most expensive first.
  std::vector<const RunningJob*> Needed(const std::vector<int>& bins, Victims victims) const {
    std::vector<const RunningJob*> order(victims.begin(), victims.end());
    std::sort(order.begin(), order.end(), [&](const auto* a, const auto* b) {
      return std::tuple(-LostWork(*a, now_us_), a->id) < std::tuple(-LostWork(*b, now_us_), b->id);
    });
    for (const RunningJob* each : order) {
      victims.erase(each);
      const bool enough = std::all_of(bins.begin(), bins.end(), [&](int bin) {
        return FreeAfter(fleet_.bin(bin), victims, On(bin)) >= Wanted(bin);
      });
      if (!enough) victims.insert(each);
    }
    std::erase_if(order, [&](const RunningJob* each) { return !victims.contains(each); });
    return order;
  }

  const PendingJob& job_;
  const Shape& shape_;
  const Fleet& fleet_;
  const JobsByBin& jobs_;
  const int64_t now_us_;
};

}  // namespace

int64_t LostWork(const RunningJob& job, int64_t now_us) {
  const int64_t since = std::max(job.saved_us, job.started_us);
  return std::max<int64_t>(0, now_us - since) * job.gpus();
}

Room MakeRoom(const PendingJob& job, const Shape& shape, const Fleet& fleet, const JobsByBin& jobs,
              int64_t now_us) {
  return Search(job, shape, fleet, jobs, now_us).Run();
}

}  // namespace sft::server::sched
