#include "server/fleet/fleet_stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "server/core/convert.h"
#include "server/state/estimates.h"
#include "server/store/history.h"
#include "server/store/node_holds.h"
#include "server/store/nodes.h"
#include "server/store/prices.h"
#include "server/store/schedules.h"

namespace sft::server {
namespace {

constexpr int kPage = 500;
constexpr int64_t kMaxSince = int64_t{10} * 366 * 24 * 3600;
constexpr double kMicrosPerHour = 3600e6;
constexpr char kCpuType[] = "CPU";

std::string_view DomainName(Verdict::Domain domain) {
  switch (domain) {
    case Verdict::Domain::kUser:
      return "user";
    case Verdict::Domain::kInfrastructure:
      return "infrastructure";
    default:
      return "unknown";
  }
}

// A row of the result while it is summed up.
struct Row {
  v1::StatsRow row;
  Cost cost;
  std::vector<int64_t> waits;
  std::map<std::string, std::pair<Verdict::Domain, int64_t>> failures;

  void CountEnd(bool succeeded, bool failed) {
    if (succeeded) {
      row.set_succeeded(row.succeeded() + 1);
    } else if (failed) {
      row.set_failed(row.failed() + 1);
    } else {
      row.set_cancelled(row.cancelled() + 1);
    }
  }
  void CountFailure(const Verdict& verdict) {
    auto& [domain, count] = failures[verdict.code.empty() ? "no_verdict" : verdict.code];
    domain = verdict.domain;
    ++count;
  }
  void AddUse(const std::string& type, double hours, const Cost& of_it) {
    cost += of_it;
    if (type == kCpuType) {
      row.set_cpu_slot_hours(row.cpu_slot_hours() + hours);
    } else {
      row.set_gpu_hours(row.gpu_hours() + hours);
    }
  }
  v1::StatsRow Finish(const std::string& name) {
    row.set_name(name);
    row.set_cost_micros(cost.micros());
    row.set_placed(static_cast<int64_t>(waits.size()));
    if (!waits.empty()) {
      // Nearest rank: returns a wait that really occurred.
      const auto at = [&](double share) {
        const auto index = static_cast<size_t>(share * static_cast<double>(waits.size() - 1) + 0.5);
        std::nth_element(waits.begin(), waits.begin() + static_cast<ptrdiff_t>(index), waits.end());
        return static_cast<double>(waits[index]) / 1e6;
      };
      row.set_wait_median_seconds(at(0.5));
      row.set_wait_p90_seconds(at(0.9));
    }
    for (const auto& [code, failure] : failures) {
      v1::VerdictCount& count = *row.add_failures();
      count.set_code(code);
      count.set_domain(std::string(DomainName(failure.first)));
      count.set_count(failure.second);
    }
    std::sort(row.mutable_failures()->begin(), row.mutable_failures()->end(),
              [](const auto& a, const auto& b) {
                return std::pair(-a.count(), a.code()) < std::pair(-b.count(), b.code());
              });
    return std::move(row);
  }
};

class Reader {
 public:
  Reader(Store& store, const v1::GetStatsRequest& request, int64_t now_us)
      : store_(store),
        by_(request.group_by()),
        begin_us_(now_us - request.since_seconds() * 1'000'000),
        end_us_(now_us) {}

  absl::StatusOr<v1::Stats> Read() {
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(prices_, store::ReadPrices(db));
      return absl::OkStatus();
    }));
    SFT_RETURN_IF_ERROR(ReadSlots());
    SFT_RETURN_IF_ERROR(ReadEnds());
    SFT_RETURN_IF_ERROR(ReadParts());
    SFT_RETURN_IF_ERROR(ReadWaits());
    SFT_RETURN_IF_ERROR(ReadCapacity());
    v1::Stats stats;
    stats.set_currency(prices_.currency());
    SFT_RETURN_IF_ERROR(ReadEstimates(stats));
    *stats.mutable_begin() = ToTimestamp(begin_us_);
    *stats.mutable_end() = ToTimestamp(end_us_);
    *stats.mutable_total() = total_.Finish("");
    for (auto& [name, row] : rows_) *stats.add_rows() = row.Finish(name);
    std::stable_sort(stats.mutable_rows()->begin(), stats.mutable_rows()->end(),
                     [](const auto& a, const auto& b) { return a.gpu_hours() > b.gpu_hours(); });
    for (const auto& [type, use] : types_) {
      v1::TypeUse& added = *stats.add_types();
      added.set_gpu_type(type);
      added.set_held_hours(use.held_hours);
      added.set_available_hours(use.available_hours);
      added.set_cost_micros(use.cost.micros());
    }
    return stats;
  }

 private:
  // Reads pages until there are no more.
  template <typename List, typename Take>
  absl::Status Each(const List& list, store::HistoryCursor cursor, const Take& take) {
    while (true) {
      const store::HistoryCursor before = cursor;
      std::decay_t<decltype(list(std::declval<Database&>(), cursor, kPage).value())> page;
      SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
        cursor = before;
        SFT_ASSIGN_OR_RETURN(page, list(db, cursor, kPage));
        return absl::OkStatus();
      }));
      if (page.empty()) return absl::OkStatus();
      for (const auto& each : page) take(each);
    }
  }

  template <typename Use>
  void Both(const std::string& project, const std::string& owner, const Use& use) {
    use(total_);
    if (by_ == v1::GetStatsRequest::PROJECT) use(rows_[project]);
    if (by_ == v1::GetStatsRequest::OWNER) use(rows_[owner]);
  }

  absl::Status ReadSlots() {
    const auto take = [&](const store::HeldSlot& slot) {
      const int64_t begin = std::max(slot.begin_us, begin_us_);
      const int64_t end = slot.end_us == 0 ? end_us_ : slot.end_us;
      const double hours = static_cast<double>(std::max<int64_t>(0, end - begin)) / kMicrosPerHour;
      const Cost cost = prices_.Of(slot.asked_type, begin, end);
      types_[slot.gpu_type].held_hours += hours;
      types_[slot.gpu_type].cost += cost;
      Both(slot.project, slot.owner, [&](Row& row) { row.AddUse(slot.gpu_type, hours, cost); });
      if (by_ == v1::GetStatsRequest::NODE) rows_[slot.node].AddUse(slot.gpu_type, hours, cost);
    };
    SFT_RETURN_IF_ERROR(Each(store::FreedSlots, {begin_us_, ""}, take));
    return Each(store::HeldSlots, {}, take);
  }

  absl::Status ReadEnds() {
    return Each(store::EndedJobs, {begin_us_, ""}, [&](const store::EndedJob& job) {
      Both(job.project, job.owner, [&](Row& row) {
        row.CountEnd(job.state == JobState::kSucceeded, job.state == JobState::kFailed);
      });
    });
  }

  absl::Status ReadParts() {
    return Each(store::EndedParts, {begin_us_, ""}, [&](const store::EndedPart& part) {
      const bool failed = part.state == AttemptState::kFailed;
      if (part.first && failed) {
        Both(part.project, part.owner, [&](Row& row) { row.CountFailure(part.verdict); });
      }
      if (by_ != v1::GetStatsRequest::NODE) return;
      Row& row = rows_[part.node];
      row.CountEnd(part.state == AttemptState::kSucceeded, failed);
      if (failed && part.verdict.node == part.node) row.CountFailure(part.verdict);
    });
  }

  absl::Status ReadWaits() {
    return Each(store::FirstPlacements, {begin_us_, ""}, [&](const store::FirstPlacement& placed) {
      Both(placed.project, placed.owner, [&](Row& row) { row.waits.push_back(placed.waited_us); });
    });
  }

  // Counts today's slots for as much of the interval as their nodes are known; slots of removed
  // nodes until they were last heard.
  absl::Status ReadCapacity() {
    return store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(const auto facts, store::AllFacts(db, /*removed=*/true));
      SFT_ASSIGN_OR_RETURN(const auto nodes, store::AllNodes(db));
      SFT_ASSIGN_OR_RETURN(const auto removed, store::RemovedNodes(db));
      for (const NodeRecord& node : nodes) AddCapacity(node, facts, end_us_);
      for (const NodeRecord& node : removed) AddCapacity(node, facts, node.last_seen_us);
      return absl::OkStatus();
    });
  }

  void AddCapacity(const NodeRecord& node, const std::map<std::string, store::NodeFacts>& facts,
                   int64_t until_us) {
    const auto known = facts.find(node.name);
    const int64_t since =
        std::max(begin_us_, known == facts.end() ? begin_us_ : known->second.first_seen_us);
    if (until_us < since) return;
    for (const SlotRecord& slot : node.slots) {
      types_[slot.gpu_type].available_hours +=
          static_cast<double>(until_us - since) / kMicrosPerHour;
    }
    if (by_ == v1::GetStatsRequest::NODE) rows_[node.name];
  }

  absl::Status ReadEstimates(v1::Stats& stats) {
    constexpr int kNewest = 1000;
    std::vector<EstimateRecord> begun, ended;
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(begun, store::LastBegun(db, kNewest));
      SFT_ASSIGN_OR_RETURN(ended, store::LastEnded(db, kNewest));
      return absl::OkStatus();
    }));
    std::erase_if(begun, [&](const auto& record) { return record.begun_us < begin_us_; });
    std::erase_if(ended, [&](const auto& record) { return record.ended_us < begin_us_; });
    const EstimateReport report = ReportOf(begun, ended);
    const auto add = [&](const char* name, const EstimateErrors& errors) {
      if (errors.all == 0) return;
      v1::EstimateError& added = *stats.add_estimates();
      added.set_estimate(name);
      added.set_count(errors.all);
      added.set_within_10(errors.within_10);
      added.set_within_20(errors.within_20);
      added.set_within_50(errors.within_50);
      added.set_mean(errors.mean);
    };
    add("start", report.start);
    add("end", report.end);
    add("end_after_50_steps", report.end_after_50);
    return absl::OkStatus();
  }

  Store& store_;
  const v1::GetStatsRequest::GroupBy by_;
  const int64_t begin_us_, end_us_;
  Row total_;
  std::map<std::string, Row> rows_;
  struct Use {
    double held_hours = 0, available_hours = 0;
    Cost cost;
  };
  std::map<std::string, Use> types_;
  PriceList prices_;
};

}  // namespace

absl::StatusOr<v1::Stats> ReadStats(Store& store, Clock& clock,
                                    const v1::GetStatsRequest& request) {
  if (request.since_seconds() <= 0 || request.since_seconds() > kMaxSince) {
    return InvalidArgument("figures are of a span of 1 second to ten years");
  }
  return Reader(store, request, UnixMicros(clock.Wall())).Read();
}

}  // namespace sft::server
