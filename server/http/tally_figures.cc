#include "server/http/tally_figures.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <string>

namespace sft::server {
namespace {

using store::Tally;
using store::TallyRecord;

// Of the GPU time of what is still held, the last minute is not shown. The transaction that frees a
// slot counts to a moment before a page that was made meanwhile: a counter that fell back would be
// read as one that began again at 0.
constexpr int64_t kUnshownUs = 60'000'000;

std::vector<const TallyRecord*> Of(const std::vector<TallyRecord>& tallies, Tally tally) {
  std::vector<const TallyRecord*> found;
  for (const TallyRecord& record : tallies) {
    if (record.tally == tally) found.push_back(&record);
  }
  return found;
}

void AddWaits(const std::vector<TallyRecord>& tallies, Exposition& page) {
  struct Waits {
    std::vector<int64_t> counts = std::vector<int64_t>(std::size(store::kWaitBounds) + 1, 0);
    double seconds = 0;
  };
  std::map<std::string, Waits> by_class;
  for (const TallyRecord* record : Of(tallies, Tally::kWaits)) {
    size_t bucket = 0;
    const std::string& text = record->second;
    std::from_chars(text.data(), text.data() + text.size(), bucket);
    Waits& waits = by_class[record->label];
    waits.counts[std::min(bucket, waits.counts.size() - 1)] += static_cast<int64_t>(record->value);
  }
  for (const TallyRecord* record : Of(tallies, Tally::kWaitSeconds)) {
    by_class[record->label].seconds = record->value;
  }
  page.Metric("sft_job_wait_seconds", "histogram",
              "From submit to the first placement, by priority class.");
  for (const auto& [name, waits] : by_class) {
    page.Sample({{"class", name}}, obs::Cumulated(store::kWaitBounds, waits.counts, waits.seconds));
  }
}

void AddGpuTime(const std::vector<TallyRecord>& tallies, const std::vector<store::HeldBy>& held,
                int64_t now_us, Exposition& page) {
  std::map<std::string, double> seconds;
  for (const TallyRecord* record : Of(tallies, Tally::kGpuSeconds)) {
    seconds[record->label] = record->value;
  }
  for (const store::HeldBy& slot : held) {
    const int64_t held_us = std::max<int64_t>(now_us - kUnshownUs - slot.since_us, 0);
    seconds[slot.project] += static_cast<double>(held_us) / 1e6;
  }
  page.Metric("sft_project_gpu_seconds_total", "counter",
              "Time of slots that a project has held, without the last minute of those it holds.");
  for (const auto& [project, time] : seconds) page.Sample({{"project", project}}, time);
}

}  // namespace

void AddTallies(const std::vector<TallyRecord>& tallies, const std::vector<store::HeldBy>& held,
                int64_t now_us, Exposition& page) {
  page.Metric("sft_jobs_ended_total", "counter", "Jobs that ended, by verdict and its domain.");
  for (const TallyRecord* record : Of(tallies, Tally::kJobsEnded)) {
    page.Sample({{"verdict", record->label}, {"domain", record->second}}, record->value);
  }
  page.Metric("sft_attempts_restarted_total", "counter",
              "Attempts whose job went back to the line, by the attempt's verdict.");
  for (const TallyRecord* record : Of(tallies, Tally::kAttemptsRestarted)) {
    page.Sample({{"verdict", record->label}}, record->value);
  }
  AddWaits(tallies, page);
  AddGpuTime(tallies, held, now_us, page);
  page.Metric("sft_job_info", "gauge", "Slots that jobs hold now.");
  for (const store::HeldBy& slot : held) {
    page.Sample({{"job_id", slot.job_id},
                 {"project", slot.project},
                 {"owner", slot.owner},
                 {"node", slot.node},
                 {"slot", std::to_string(slot.slot)}},
                1);
  }
  page.Metric("sft_backup_last_success_timestamp_seconds", "gauge",
              "When the last backup was made, Unix time.");
  for (const TallyRecord* record : Of(tallies, Tally::kBackup)) page.Sample({}, record->value);
  page.Metric("sft_webhook_deliveries_total", "counter",
              "Tries of webhooks' deliveries, by what came of each; dropped: too many waited.");
  std::map<std::string, double> results = {
      {"delivered", 0}, {"retried", 0}, {"failed", 0}, {"dropped", 0}};
  for (const TallyRecord* record : Of(tallies, Tally::kWebhookDeliveries)) {
    results[record->label] = record->value;
  }
  for (const auto& [result, count] : results) page.Sample({{"result", result}}, count);
}

}  // namespace sft::server
