#include "server/core/failed_calls.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace sft::server {

FailedCalls::Kind FailedCalls::KindOf(const AuditRecord& call) {
  const Kind kind(call.principal, call.method, call.outcome);
  if (minute_.contains(kind)) return kind;
  const auto of_one = kinds_of_.find(call.principal);
  if (minute_.size() >= kMostOfAll) return {kOthers, kOtherCalls, call.outcome};
  if (of_one != kinds_of_.end() && of_one->second >= kMostOfOne) {
    return {call.principal, kOtherCalls, call.outcome};
  }
  return kind;
}

void FailedCalls::Count(AuditRecord call) {
  const MutexLock lock(mutex_);
  call.outcome = std::clamp(call.outcome, 0, kCodes - 1);
  ++totals_[static_cast<size_t>(call.outcome)];
  Kind kind = KindOf(call);
  const auto [at, first] = minute_.try_emplace(kind);
  AuditRecord& record = at->second.record;
  if (first) {
    ++kinds_of_[std::get<0>(kind)];
    record = std::move(call);
    std::tie(record.principal, record.method, record.outcome) = std::move(kind);
    record.time_us = UnixMicros(clock_.Wall());
    record.calls = 0;
  }
  ++record.calls;
}

absl::Status FailedCalls::Flush() {
  const MutexLock flush_lock(flush_mutex_);
  std::vector<std::pair<Kind, AuditRecord>> news;
  const int64_t now_us = UnixMicros(clock_.Wall());
  {
    const MutexLock lock(mutex_);
    for (const auto& [kind, counted] : minute_) {
      if (counted.record.calls > counted.written) news.emplace_back(kind, counted.record);
    }
  }
  std::vector<int64_t> sequences;
  if (!news.empty()) {
    SFT_RETURN_IF_ERROR(store_.Write([&](Database& db) -> absl::Status {
      sequences.clear();
      for (const auto& [kind, record] : news) {
        sequences.push_back(record.sequence);
        if (record.sequence > 0) {
          SFT_RETURN_IF_ERROR(store::CountAudit(db, record.sequence, record.calls));
          continue;
        }
        SFT_RETURN_IF_ERROR(store::InsertAudit(db, record));
        sequences.back() = db.last_insert_rowid();
      }
      return absl::OkStatus();
    }));
  }
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < news.size(); ++i) {
    Counted& counted = minute_.at(news[i].first);
    counted.record.sequence = sequences[i];
    counted.written = news[i].second.calls;
  }
  for (auto at = minute_.begin(); at != minute_.end();) {
    const auto& [record, written] = at->second;
    // True too when the clock was set back.
    const bool over = now_us - record.time_us >= kMinuteUs || now_us < record.time_us;
    if (!over || record.calls > written) {
      ++at;
      continue;
    }
    const auto of_one = kinds_of_.find(record.principal);
    if (--of_one->second == 0) kinds_of_.erase(of_one);
    at = minute_.erase(at);
  }
  return absl::OkStatus();
}

std::array<int64_t, FailedCalls::kCodes> FailedCalls::totals() const {
  const MutexLock lock(mutex_);
  return totals_;
}

}  // namespace sft::server
