#include "server/sched/fleet.h"

#include <algorithm>
#include <numeric>

namespace sft::server::sched {
int RunningJob::gpus() const {
  int gpus = 0;
  for (const Part& part : parts) gpus += static_cast<int>(part.slots.size());
  return gpus;
}

Fleet::Fleet(const Snapshot& snapshot) : snapshot_(snapshot) { MakeBins(snapshot); }

void Fleet::MakeBins(const Snapshot& snapshot) {
  for (size_t h = 0; h < snapshot.nodes.size(); ++h) {
    const NodeView& node = snapshot.nodes[h];
    hosts_.emplace(node.name, static_cast<int>(h));
    places_.Add(node.place);
    of_host_.emplace_back();
    int healthy = 0;
    for (const SlotView& slot : node.slots) {
      const int type = types_.emplace(slot.gpu_type, static_cast<int>(types_.size())).first->second;
      if (type == static_cast<int>(by_type_.size())) by_type_.emplace_back();
      if (by_type_[type].empty() || bins_[by_type_[type].back()].host != static_cast<int>(h)) {
        by_type_[type].push_back(static_cast<int>(bins_.size()));
        of_host_[h].push_back(static_cast<int>(bins_.size()));
        bins_.emplace_back().node = &node;
        bins_.back().host = static_cast<int>(h);
      }
      Bin& bin = bins_[by_type_[type].back()];
      ++bin.total;
      if (!slot.healthy) ++bin.sick;
      if (slot.healthy) ++healthy;
      if (slot.job.empty() && slot.healthy) bin.free.push_back(slot.index);
      if (!slot.job.empty() &&
          std::find(bin.holders.begin(), bin.holders.end(), slot.job) == bin.holders.end()) {
        bin.holders.push_back(slot.job);
      }
    }
    whole_total_.push_back(healthy);
    whole_.emplace_back(snapshot.now_us, healthy);
  }
  for (const Bin& bin : bins_) profiles_.emplace_back(snapshot.now_us, bin.healthy());
  for (size_t h = 0; h < snapshot.nodes.size(); ++h) {
    const int64_t until = snapshot.nodes[h].jobs_until_us;
    if (until == 0) continue;
    whole_[h].Take(until, kForever, whole_total_[h]);
    for (const int bin : of_host_[h]) profiles_[bin].Take(until, kForever, bins_[bin].healthy());
  }
  std::vector<int> order(snapshot.nodes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return snapshot.nodes[a].name < snapshot.nodes[b].name; });
  by_name_.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i) by_name_[order[i]] = static_cast<int>(i);
}

int Fleet::TypeOf(std::string_view gpu_type) const {
  const auto found = types_.find(gpu_type);
  return found == types_.end() ? -1 : found->second;
}

int Fleet::BinOf(std::string_view node, int type) const {
  const auto host = hosts_.find(node);
  if (host == hosts_.end() || type < 0) return -1;
  const std::vector<int>& bins = by_type_[type];
  const auto found = std::lower_bound(bins.begin(), bins.end(), host->second,
                                      [&](int bin, int h) { return bins_[bin].host < h; });
  return found != bins.end() && bins_[*found].host == host->second ? *found : -1;
}

const std::vector<bool>& Fleet::HostsWith(std::string_view model) {
  const auto found = models_.find(model);
  if (found != models_.end()) return found->second;
  std::vector<bool> hosts;
  for (const NodeView& node : snapshot_.nodes) {
    hosts.push_back(std::find(node.models.begin(), node.models.end(), model) != node.models.end());
  }
  return models_.emplace(model, std::move(hosts)).first->second;
}

bool Fleet::MayDownload(const PendingJob& job) {
  if (!job.on_hub) return false;
  const std::vector<bool>& seen = HostsWith(job.model);
  return job.model.find('@') != std::string::npos ||
         std::find(seen.begin(), seen.end(), true) == seen.end();
}

std::vector<int> Fleet::OfOneBuild(const std::vector<int>& bins, std::string& build) const {
  std::map<std::string_view, std::vector<int>> by_build;
  for (const int bin : bins) by_build[bins_[bin].node->rank_build].push_back(bin);
  const auto most = std::max_element(
      by_build.begin(), by_build.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (most == by_build.end()) return {};
  build = most->first;
  return most->second;
}

Shape Fleet::MakeShape(const PendingJob& job) {
  Shape shape;
  shape.type = TypeOf(job.gpu_type);
  shape.gpus_per_node = job.gpus_per_node;
  shape.nodes = job.nodes;
  shape.exclusive = job.exclusive;
  shape.resumes = job.resumes;
  if (shape.type < 0) return shape;
  shape.all = by_type_[shape.type];
  const std::vector<bool>* seen = job.model.empty() ? nullptr : &HostsWith(job.model);
  const bool downloads = MayDownload(job);
  const auto& only = job.only_nodes;
  std::vector<int> left_out;
  for (const int index : shape.all) {
    const Bin& bin = bins_[index];
    const bool reaches =
        (only.empty() || std::find(only.begin(), only.end(), bin.node->name) != only.end()) &&
        (!job.needs_shared || bin.node->has_shared);
    if (bin.healthy() < job.gpus_per_node || !reaches || bin.node->protocol < job.protocol ||
        (seen != nullptr && !(*seen)[bin.host] && !(downloads && bin.node->downloads))) {
      continue;
    }
    if (seen != nullptr && !(*seen)[bin.host]) shape.without_model.push_back(index);
    if (!bin.node->usable) {
      if (bin.node->returning) shape.returning.push_back(index);
      continue;
    }
    (bin.node->left_out.empty() ? shape.able : left_out).push_back(index);
  }
  const auto pick_build = [&] {
    if (shape.nodes > 1) shape.able = OfOneBuild(shape.any_build, shape.rank_build);
  };
  shape.any_build = shape.able;
  pick_build();
  shape.spares_left_out = shape.possible();
  if (!shape.possible()) {
    shape.any_build.insert(shape.any_build.end(), left_out.begin(), left_out.end());
    std::sort(shape.any_build.begin(), shape.any_build.end());
    shape.able = shape.any_build;
    pick_build();
  }
  for (const std::string& name : only) {
    const int bin = BinOf(name, shape.type);
    if (std::find(shape.able.begin(), shape.able.end(), bin) != shape.able.end()) {
      shape.pinned.push_back(bin);
    }
  }
  return shape;
}

const Shape& Fleet::ShapeOf(const PendingJob& job) {
  const Key key(job.gpu_type, job.gpus_per_node, job.nodes, job.exclusive, job.model, job.protocol,
                job.needs_shared, job.only_nodes, job.on_hub, job.resumes);
  const auto found = shapes_.find(key);
  if (found != shapes_.end()) return found->second;
  return shapes_.emplace(key, MakeShape(job)).first->second;
}

const Profile& Fleet::ProfileOf(const Shape& shape, int bin) const {
  return shape.exclusive ? whole_[bins_[bin].host] : profiles_[bin];
}

int Fleet::CountOf(const Shape& shape, int bin) const {
  return shape.exclusive ? whole_total_[bins_[bin].host] : shape.gpus_per_node;
}

int64_t Fleet::StayOn(const Shape& shape, int bin, int64_t duration) const {
  const NodeView& node = *bins_[bin].node;
  return node.jobs_until_us > 0 && shape.resumes ? std::min(duration, node.least_stay_us)
                                                 : duration;
}

int64_t Fleet::EarliestOn(const Shape& shape, int bin, int64_t from, int64_t duration) const {
  return ProfileOf(shape, bin).Earliest(from, StayOn(shape, bin, duration), CountOf(shape, bin));
}

void Fleet::Change(const Shape& shape, const std::vector<int>& bins, int64_t start,
                   int64_t duration, int sign) {
  const int64_t end = duration >= kForever - start ? kForever : start + duration;
  for (const int index : bins) {
    const int host = bins_[index].host;
    if (!shape.exclusive) {
      profiles_[index].Take(start, end, sign * shape.gpus_per_node);
      whole_[host].Take(start, end, sign * shape.gpus_per_node);
      continue;
    }
    for (const int each : of_host_[host]) {
      profiles_[each].Take(start, end, sign * bins_[each].healthy());
    }
    whole_[host].Take(start, end, sign * whole_total_[host]);
  }
}

std::vector<int> Fleet::Claim(const Shape& shape, int index, const std::string& job) {
  Bin& bin = bins_[index];
  const auto end = bin.free.begin() + shape.gpus_per_node;
  std::vector<int> slots(bin.free.begin(), end);
  bin.free.erase(bin.free.begin(), end);
  bin.holders.push_back(job);
  if (shape.exclusive) {
    for (const int each : of_host_[bin.host]) bins_[each].free.clear();
  }
  return slots;
}

void Fleet::Hold(int index, int count, bool exclusive, int64_t until) {
  const int host = bins_[index].host;
  const int64_t now = snapshot_.now_us;
  if (!exclusive) {
    profiles_[index].Take(now, until, count);
    whole_[host].Take(now, until, count);
    return;
  }
  for (const int each : of_host_[host]) {
    profiles_[each].Take(now, until, bins_[each].healthy());
    bins_[each].free.clear();
  }
  whole_[host].Take(now, until, whole_total_[host]);
}

void Fleet::Shorten(int index, int count, bool exclusive, int64_t from, int64_t to) {
  const int host = bins_[index].host;
  const int sign = count < 0 ? -1 : 1;
  if (!exclusive) {
    profiles_[index].Take(from, to, -count);
    whole_[host].Take(from, to, -count);
    return;
  }
  for (const int each : of_host_[host]) {
    profiles_[each].Take(from, to, -sign * bins_[each].healthy());
  }
  whole_[host].Take(from, to, -sign * whole_total_[host]);
}

std::vector<int> Fleet::Choose(const Shape& shape, std::vector<int> fitting, int64_t start,
                               std::string_view avoid) const {
  const auto nodes = static_cast<size_t>(shape.nodes);
  if (!shape.pinned.empty()) {
    std::vector<int> chosen;
    for (const int bin : shape.pinned) {
      if (std::find(fitting.begin(), fitting.end(), bin) != fitting.end()) chosen.push_back(bin);
    }
    chosen.resize(std::min(chosen.size(), nodes));
    return chosen;
  }
  // Among nodes reserved for a later start, those that become free last idle the least.
  const auto idles = [&](int bin) {
    return start - ProfileOf(shape, bin).FreeSince(start, CountOf(shape, bin));
  };
  const auto lacks_model = [&](int bin) {
    const auto& lacking = shape.without_model;
    return std::find(lacking.begin(), lacking.end(), bin) != lacking.end();
  };
  using Score = std::tuple<bool, bool, int64_t, int, int, int>;
  std::vector<Score> scores;
  scores.reserve(fitting.size());
  for (const int bin : fitting) {
    const Bin& b = bins_[bin];
    scores.emplace_back(!avoid.empty() && b.node->name == avoid, lacks_model(bin),
                        start > snapshot_.now_us ? idles(bin) : 0,
                        ProfileOf(shape, bin).FreeAt(start), by_name_[b.host], bin);
  }
  if (nodes == 1) return {std::get<5>(*std::min_element(scores.begin(), scores.end()))};
  std::sort(scores.begin(), scores.end());
  // The node to avoid is the last, and left out where the others are enough.
  if (std::get<0>(scores.back()) && scores.size() > nodes) scores.pop_back();
  std::vector<int> hosts, bin_of(of_host_.size(), -1);
  for (const Score& score : scores) {
    const int bin = std::get<5>(score);
    hosts.push_back(bins_[bin].host);
    bin_of[bins_[bin].host] = bin;
  }
  std::vector<int> chosen = places_.Choose(hosts, nodes);
  for (int& each : chosen) each = bin_of[each];
  return chosen;
}

Fleet::Fit Fleet::Earliest(const Shape& shape, int64_t duration, std::string_view avoid) const {
  Fit fit;
  if (!shape.possible()) return fit;
  if (shape.nodes == 1) {
    for (const int bin : shape.able) {
      fit.start = std::min(fit.start, EarliestOn(shape, bin, snapshot_.now_us, duration));
      if (fit.start <= snapshot_.now_us) break;
    }
  } else {
    // Edges of the intervals of possible starts; sweep to the first moment inside enough of them.
    std::vector<std::pair<int64_t, int>> edges;
    for (const int bin : shape.able) {
      const int64_t stay = StayOn(shape, bin, duration);
      ProfileOf(shape, bin).Starts(stay, CountOf(shape, bin), [&](int64_t a, int64_t b) {
        edges.emplace_back(a, -1);
        if (b < kForever) edges.emplace_back(b, 1);
      });
    }
    // At equal times starts sort first: an interval includes its last start.
    std::sort(edges.begin(), edges.end());
    int open = 0;
    for (const auto& [time, end] : edges) {
      open -= end;
      if (open >= shape.nodes) {
        fit.start = time;
        break;
      }
    }
  }
  if (fit.start >= kForever) return Fit();
  std::vector<int> fitting;
  for (const int bin : shape.able) {
    if (EarliestOn(shape, bin, fit.start, duration) == fit.start) fitting.push_back(bin);
  }
  fit.bins = Choose(shape, std::move(fitting), fit.start, avoid);
  return fit;
}

Fleet::Fit Fleet::Now(const Shape& shape, int64_t duration, std::string_view avoid) const {
  std::vector<int> fitting;
  for (const int bin : shape.able) {
    if (ProfileOf(shape, bin).FreeNow() < CountOf(shape, bin)) continue;
    if (EarliestOn(shape, bin, snapshot_.now_us, duration) == snapshot_.now_us) {
      fitting.push_back(bin);
    }
  }
  if (static_cast<int>(fitting.size()) < shape.nodes) return {};
  return {snapshot_.now_us, Choose(shape, std::move(fitting), snapshot_.now_us, avoid)};
}

bool Fleet::FitsAt(const Shape& shape, const std::vector<int>& bins, int64_t start,
                   int64_t duration) const {
  return std::all_of(bins.begin(), bins.end(),
                     [&](int bin) { return EarliestOn(shape, bin, start, duration) == start; });
}

}  // namespace sft::server::sched
