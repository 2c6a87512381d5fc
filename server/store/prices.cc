#include "server/store/prices.h"

#include <fmt/format.h>

#include "server/store/states.h"

namespace sft::server::store {
namespace {

// Sums up rows of (type, begin, end).
absl::StatusOr<Cost> Sum(Statement& spans, const PriceList& prices) {
  Cost cost;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, spans.Step());
    if (!row) return cost;
    cost += prices.Of(spans.Text(0), spans.Int(1), spans.Int(2));
  }
}

}  // namespace

absl::StatusOr<std::vector<PriceRecord>> AllPrices(Database& db) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT gpu_type, start_us, micros_per_hour, currency, set_by "
                                  "FROM prices ORDER BY gpu_type, start_us"));
  std::vector<PriceRecord> prices;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return prices;
    prices.push_back({list.Text(0), list.Int(1), list.Int(2), list.Text(3), list.Text(4)});
  }
}

absl::StatusOr<PriceList> ReadPrices(Database& db) {
  SFT_ASSIGN_OR_RETURN(const std::vector<PriceRecord> prices, AllPrices(db));
  return PriceList(prices);
}

absl::Status PutPrice(Database& db, const PriceRecord& price) {
  {
    SFT_ASSIGN_OR_RETURN(Statement put,
                         db.Prepare("INSERT OR REPLACE INTO prices (gpu_type, start_us, "
                                    "micros_per_hour, currency, set_by) VALUES (?, ?, ?, ?, ?)"));
    put.Bind(price.gpu_type).Bind(price.start_us).Bind(price.micros_per_hour);
    SFT_RETURN_IF_ERROR(put.Bind(price.currency).Bind(price.set_by).Run());
  }
  SFT_ASSIGN_OR_RETURN(Statement count, db.Prepare("SELECT count(*) FROM prices"));
  SFT_RETURN_IF_ERROR(count.Step().status());
  if (count.Int(0) <= kMaxPrices) return absl::OkStatus();
  return ResourceExhausted(
      fmt::format("there are {} prices already, which is the most", kMaxPrices));
}

absl::Status DeletePrice(Database& db, const std::string& gpu_type, int64_t start_us) {
  SFT_ASSIGN_OR_RETURN(Statement remove,
                       db.Prepare("DELETE FROM prices WHERE gpu_type = ? AND start_us = ?"));
  SFT_RETURN_IF_ERROR(remove.Bind(gpu_type).Bind(start_us).Run());
  return db.changes() == 1 ? absl::OkStatus()
                           : NotFound("there is no such price: `sftctl price list` shows them");
}

absl::StatusOr<Cost> CostOfJob(Database& db, const PriceList& prices, const std::string& job_id,
                               int64_t now_us) {
  if (prices.empty()) return Cost();
  SFT_ASSIGN_OR_RETURN(
      Statement spans,
      db.Prepare("SELECT j.gpu_type, a.created_us, coalesce(a.freed_us, CASE n.removed WHEN 1 THEN "
                 "n.last_seen_us ELSE ?1 END) FROM attempts t JOIN allocations a ON a.attempt_uid "
                 "= t.uid JOIN jobs j ON j.id = t.job_id JOIN nodes n ON n.name = a.node WHERE "
                 "t.job_id = ?2"));
  return Sum(spans.Bind(now_us).Bind(job_id), prices);
}

absl::StatusOr<Cost> LostCostOfJob(Database& db, const PriceList& prices,
                                   const std::string& job_id) {
  if (prices.empty()) return Cost();
  SFT_ASSIGN_OR_RETURN(
      Statement spans,
      db.Prepare("SELECT j.gpu_type, max(a.created_us, coalesce((SELECT max(c.committed_us) FROM "
                 "checkpoints c WHERE c.attempt_uid = t.uid), 0)), coalesce(a.freed_us, 0) FROM "
                 "attempts t JOIN allocations a ON a.attempt_uid = t.uid JOIN jobs j ON j.id = "
                 "t.job_id WHERE t.job_id = ? AND (t.number < j.attempt OR (j.state " SFT_IS_PENDING
                 " AND "
                 "t.number = j.attempt))"));
  return Sum(spans.Bind(job_id), prices);
}

}  // namespace sft::server::store
