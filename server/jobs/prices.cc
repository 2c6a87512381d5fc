#include "server/jobs/prices.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/money.h"
#include "server/core/convert.h"
#include "server/state/names.h"
#include "server/store/budgets.h"
#include "server/store/prices.h"

namespace sft::server {
namespace {

// Times of prices lie between these: 1970 and 9999.
constexpr int64_t kLatestUs = 253'402'300'799'000'000;

v1::Price ToProto(const PriceRecord& price) {
  v1::Price proto;
  proto.set_gpu_type(price.gpu_type);
  proto.set_micros_per_hour(price.micros_per_hour);
  proto.set_currency(price.currency);
  *proto.mutable_start_time() = ToTimestamp(price.start_us);
  proto.set_set_by(price.set_by);
  return proto;
}

int64_t MicrosOf(const google::protobuf::Timestamp& time) {
  return std::clamp<int64_t>(time.seconds(), 0, kLatestUs / 1'000'000) * 1'000'000 +
         std::clamp(time.nanos(), 0, 999'999'999) / 1000;
}

// Times are shown to the millisecond, and a price is named by its time.
int64_t NextMilli(int64_t time_us) { return (time_us + 999) / 1000 * 1000; }

bool IsCurrency(const std::string& text) {
  return text.size() == 3 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}

absl::Status CheckPrice(const PriceRecord& price) {
  if (!price.gpu_type.empty() && !IsValidLabel(price.gpu_type)) {
    return InvalidArgument(
        fmt::format("\"{}\" is no type of slots (H100, CPU)", price.gpu_type.substr(0, 80)));
  }
  if (price.micros_per_hour < 0 || price.micros_per_hour > Prices::kMostMicros) {
    return InvalidArgument(
        fmt::format("an hour costs 0 to {}", MoneyText(Prices::kMostMicros, price.currency)));
  }
  if (IsCurrency(price.currency)) return absl::OkStatus();
  if (price.currency.empty()) {
    return InvalidArgument("the first price says in which currency all are (EUR)");
  }
  return InvalidArgument("a currency has three capital letters (EUR)");
}

// What was used keeps its price.
absl::Status CheckStart(const PriceList& prices, const PriceRecord& price, int64_t now_us) {
  if (!prices.HasBetween(price.gpu_type, price.start_us, now_us)) return absl::OkStatus();
  return FailedPrecondition(fmt::format(
      "{} had a price since {}, and what was used keeps it: set one from now on, or "
      "from a later time",
      price.gpu_type.empty() ? "GPUs" : price.gpu_type, FormatUtc(FromUnixMicros(price.start_us))));
}

// A price from a time that has passed counts for what was used since.
absl::Status RecountBudgets(Database& db, int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(const PriceList prices, store::ReadPrices(db));
  SFT_ASSIGN_OR_RETURN(std::vector<store::SpentBudget> all, store::AllSpent(db, now_us));
  for (store::SpentBudget& each : all) {
    SFT_RETURN_IF_ERROR(store::Recount(db, prices, each.budget));
    SFT_RETURN_IF_ERROR(store::PutBudget(db, each.budget));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::ListPricesResponse> Prices::List() {
  v1::ListPricesResponse response;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const std::vector<PriceRecord> prices, store::AllPrices(db));
    for (const PriceRecord& price : prices) *response.add_prices() = ToProto(price);
    return absl::OkStatus();
  }));
  return response;
}

absl::StatusOr<v1::Price> Prices::Set(const v1::SetPriceRequest& request, const Actor& actor) {
  PriceRecord price;
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) -> absl::Status {
        const int64_t now_us = UnixMicros(clock_.Wall());
        SFT_ASSIGN_OR_RETURN(const PriceList prices, store::ReadPrices(db));
        price = {request.gpu_type(),
                 request.has_start_time() ? MicrosOf(request.start_time()) : NextMilli(now_us),
                 request.micros_per_hour(),
                 request.currency().empty() ? prices.currency() : request.currency(), actor.name};
        SFT_RETURN_IF_ERROR(CheckPrice(price));
        if (!prices.empty() && price.currency != prices.currency()) {
          return FailedPrecondition(
              fmt::format("prices are in {}, and what was used stays in it", prices.currency()));
        }
        SFT_RETURN_IF_ERROR(CheckStart(prices, price, now_us));
        SFT_RETURN_IF_ERROR(store::PutPrice(db, price));
        return price.start_us < now_us ? RecountBudgets(db, now_us) : absl::OkStatus();
      },
      actor.audit));
  return ToProto(price);
}

absl::Status Prices::Remove(const v1::RemovePriceRequest& request, const Actor& actor) {
  const int64_t start_us = MicrosOf(request.start_time());
  return store_.Write(
      [&](Database& db) -> absl::Status {
        SFT_RETURN_IF_ERROR(store::DeletePrice(db, request.gpu_type(), start_us));
        if (start_us > UnixMicros(clock_.Wall())) return absl::OkStatus();
        return FailedPrecondition(
            "this price is or was in effect, and what was used keeps it: set another one from now "
            "on");
      },
      actor.audit);
}

}  // namespace sft::server
