#include "server/state/estimates.h"

#include <algorithm>
#include <cstdlib>

namespace sft::server {
namespace {

// In a short line a part of the wait says little.
constexpr int64_t kNearUs = 120'000'000;

void Add(double error, EstimateErrors& errors) {
  errors.mean = (errors.mean * errors.all + error) / (errors.all + 1);
  ++errors.all;
  ++errors.by_bound.at(static_cast<size_t>(
      std::ranges::lower_bound(EstimateErrors::kBounds, error) - EstimateErrors::kBounds.begin()));
  errors.within_10 += error <= 0.1 ? 1 : 0;
  errors.within_20 += error <= 0.2 ? 1 : 0;
  errors.within_50 += error <= 0.5 ? 1 : 0;
}

double ErrorOf(int64_t since, int64_t expected, int64_t happened) {
  const auto off = static_cast<double>(std::abs(expected - happened));
  return off / static_cast<double>(std::max<int64_t>(happened - since, 1));
}

}  // namespace

EstimateReport ReportOf(const std::vector<EstimateRecord>& begun,
                        const std::vector<EstimateRecord>& ended) {
  EstimateReport report;
  for (const EstimateRecord& record : begun) {
    const bool near = std::abs(record.start_us - record.begun_us) <= kNearUs;
    Add(near ? 0 : ErrorOf(record.submitted_us, record.start_us, record.begun_us), report.start);
  }
  for (const EstimateRecord& record : ended) {
    if (record.end_us > 0) {
      Add(ErrorOf(record.submitted_us, record.end_us, record.ended_us), report.end);
    }
    if (record.end50_us > 0) {
      Add(ErrorOf(record.begun_us, record.end50_us, record.ended_us), report.end_after_50);
    }
  }
  return report;
}

}  // namespace sft::server
