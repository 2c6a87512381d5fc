#include "server/sched/forecast.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "server/sched/order.h"
#include "server/sched/preempt.h"

namespace sft::server::sched {

void Forecast::HoldRunning(const Snapshot& snapshot, const std::vector<Preemption>& preemptions) {
  std::set<std::string_view> stopped;
  for (const Preemption& each : preemptions) stopped.insert(each.job);
  std::map<std::string_view, const RunningJob*> by_id;
  for (const RunningJob& job : snapshot.running) by_id[job.id] = &job;
  for (const NodeView& node : snapshot.nodes) {
    for (const SlotView& slot : node.slots) {
      const int type = fleet_.TypeOf(slot.gpu_type);
      if (slot.healthy) ++types_[type].slots;
      if (slot.job.empty() || !slot.healthy) continue;
      const auto found = by_id.find(slot.job);
      const RunningJob* job = found == by_id.end() ? nullptr : found->second;
      int64_t end = now_ + kUnknownRunUs;
      if (job != nullptr && stopped.contains(job->id)) {
        end = now_ + kStopUs;
      } else if (job != nullptr && job->stopping) {
        end = std::max(job->bound_end_us, now_ + 1);
      } else if (job != nullptr && job->expected_end_us > 0) {
        end = job->expected_end_us > now_ ? job->expected_end_us : now_ + kOverdueUs;
      } else {
        types_[type].unknown = true;
      }
      types_[type].work_us += static_cast<double>(end - now_);
      fleet_.Hold(fleet_.BinOf(node.name, type), 1, false, end);
    }
  }
}

void Forecast::HoldPlaced(const std::vector<Placement>& placements,
                          const std::vector<Entry>& entries) {
  std::map<std::string_view, const PendingJob*> placed;
  for (const Entry& entry : entries) {
    if (entry.placed) placed[entry.job->id] = entry.job;
  }
  for (const Placement& placement : placements) {
    const PendingJob& job = *placed.at(placement.job);
    const Shape& shape = fleet_.ShapeOf(job);
    const int64_t duration = job.expected_us > 0 ? job.expected_us : kUnknownRunUs;
    types_[shape.type].unknown |= job.expected_us == 0;
    types_[shape.type].work_us += static_cast<double>(duration) * job.gpus();
    std::vector<int> bins;
    for (const Part& part : placement.parts) bins.push_back(fleet_.BinOf(part.node, shape.type));
    fleet_.Take(shape, bins, now_, duration);
  }
}

Forecast::Forecast(const Snapshot& snapshot, const std::vector<Placement>& placements,
                   const std::vector<Preemption>& preemptions, const std::vector<Entry>& entries,
                   int max)
    : now_(snapshot.now_us), fleet_(snapshot), types_(fleet_.types()), expected_(entries.size()) {
  HoldRunning(snapshot, preemptions);
  HoldPlaced(placements, entries);
  int foretold = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const PendingJob& job = *entries[i].job;
    const int64_t duration = job.expected_us > 0 ? job.expected_us : kUnknownRunUs;
    int64_t start = now_;
    const Shape& shape = fleet_.ShapeOf(job);
    Type& type = types_[shape.type];
    if (!entries[i].placed) {
      if (foretold++ < max) {
        const Fleet::Fit fit = fleet_.Earliest(shape, duration, job.avoid_node);
        start = std::min(fit.start, entries[i].promised_us);
        if (!fit.bins.empty()) fleet_.Take(shape, fit.bins, fit.start, duration);
      } else {
        start = now_ + static_cast<int64_t>(type.work_us / std::max(type.slots, 1));
      }
      type.work_us += static_cast<double>(duration) * job.gpus();
    }
    const bool known = start < kForever && (!type.unknown || entries[i].placed);
    if (!entries[i].placed) type.unknown |= job.expected_us == 0;
    if (!known) continue;
    expected_[i].start_us = start;
    if (job.expected_us > 0) expected_[i].end_us = start + job.expected_us;
  }
}

}  // namespace sft::server::sched
