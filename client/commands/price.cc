#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "common/base/json.h"
#include "common/base/money.h"
#include "sft/v1/operator_service.grpc.pb.h"

namespace sft::client {
namespace {

using Prices = v1::OperatorService::Stub;

// As a type of GPUs: what has no price of its own.
constexpr char kOthers[] = "default";
constexpr int64_t kMostPrice = 1'000'000 * kMoneyUnit;

struct PriceOptions {
  std::string type, amount, currency, start;
};

std::string TypeName(const v1::Price& price) {
  return price.gpu_type().empty() ? kOthers : price.gpu_type();
}

std::string TypeOf(const PriceOptions& options) {
  return options.type == kOthers ? "" : options.type;
}

Json PriceJson(const v1::Price& price) {
  return {{"gpu_type", TypeName(price)},
          {"micros_per_hour", price.micros_per_hour()},
          {"currency", price.currency()},
          {"start_time", Utc(price.start_time())},
          {"set_by", price.set_by()}};
}

// "2027-01-01" begins with that day in UTC.
absl::StatusOr<google::protobuf::Timestamp> TimeOf(const std::string& text) {
  std::optional<WallTime> time = ParseUtc(text);
  if (!time.has_value()) time = ParseUtc(text + "T00:00:00Z");
  if (!time.has_value()) {
    return InvalidArgument(
        fmt::format("{} is no time: give a day (2027-01-01) or a time in UTC "
                    "(2027-01-01T12:00:00Z)",
                    text));
  }
  google::protobuf::Timestamp proto;
  const int64_t micros = UnixMicros(*time);
  proto.set_seconds(micros / 1'000'000);
  proto.set_nanos(static_cast<int32_t>(micros % 1'000'000) * 1000);
  return proto;
}

// What is in effect now comes before it ends.
std::string StateOf(const v1::Price& price, const v1::Price* next, WallTime now) {
  const double now_s = static_cast<double>(UnixMicros(now)) / 1e6;
  if (Seconds(price.start_time()) > now_s) return "from then on";
  return next != nullptr && Seconds(next->start_time()) <= now_s ? "past" : "now";
}

ExitCode ListPrices(Connection& connection, bool json) {
  const auto all = connection.Call(&Prices::ListPrices, v1::ListPricesRequest());
  if (!all.ok()) return Fail(connection, all.status());
  std::ostream& out = connection.console().out;
  if (json) {
    Json list = Json::array();
    for (const v1::Price& price : all->prices()) list.push_back(PriceJson(price));
    out << DumpJson(list, 2) << "\n";
    return kSucceeded;
  }
  Table table({"SLOT", "AN HOUR", "FROM", "IN EFFECT", "SET BY"});
  for (int i = 0; i < all->prices_size(); ++i) {
    const v1::Price& price = all->prices(i);
    const bool last =
        i + 1 == all->prices_size() || all->prices(i + 1).gpu_type() != price.gpu_type();
    table.Add({TypeName(price), ExactMoneyText(price.micros_per_hour(), price.currency()),
               Utc(price.start_time()),
               StateOf(price, last ? nullptr : &all->prices(i + 1), connection.clock().Wall()),
               price.set_by()});
  }
  out << table.Render();
  return kSucceeded;
}

ExitCode SetPrice(Connection& connection, const PriceOptions& options, bool json) {
  v1::SetPriceRequest request;
  request.set_gpu_type(TypeOf(options));
  const std::optional<int64_t> micros = ParseMoney(options.amount, kMostPrice);
  if (!micros.has_value()) {
    return Fail(connection, InvalidArgument(fmt::format(
                                "{} is no price: give a number such as 2.10, with at most six "
                                "digits behind the point, up to 1000000",
                                options.amount)));
  }
  request.set_micros_per_hour(*micros);
  request.set_currency(options.currency);
  if (!options.start.empty()) {
    const auto start = TimeOf(options.start);
    if (!start.ok()) return Fail(connection, start.status());
    *request.mutable_start_time() = *start;
  }
  const auto price = connection.Call(&Prices::SetPrice, request);
  if (!price.ok()) return Fail(connection, price.status());
  if (json) {
    connection.console().out << DumpJson(PriceJson(*price), 2) << "\n";
  } else {
    connection.console().out << OneLine(fmt::format(
                                    "{}: {} an hour from {}", TypeName(*price),
                                    ExactMoneyText(price->micros_per_hour(), price->currency()),
                                    Utc(price->start_time())))
                             << "\n";
  }
  return kSucceeded;
}

ExitCode RemovePrice(Connection& connection, const PriceOptions& options) {
  v1::RemovePriceRequest request;
  request.set_gpu_type(TypeOf(options));
  const auto start = TimeOf(options.start);
  if (!start.ok()) return Fail(connection, start.status());
  *request.mutable_start_time() = *start;
  const auto removed = connection.Call(&Prices::RemovePrice, request);
  if (!removed.ok()) return Fail(connection, removed.status());
  return kSucceeded;
}

}  // namespace

void AddPrice(Command& app, Session& session) {
  Command* price = app.AddCommand("price", "What an hour of a GPU costs", "sftctl price list");
  price->RequireCommand();
  const auto options = std::make_shared<PriceOptions>();
  const auto add = [&](const char* name, const char* description, const char* example) {
    Command* command = price->AddCommand(name, description, example);
    command
        ->AddOption("TYPE", options->type,
                    "Type of GPU (H100), CPU, or default: each type of GPU without a price of its "
                    "own")
        ->Required();
    return command;
  };
  Command* list =
      price->AddCommand("list", "List all prices: past, present and future", "sftctl price list");
  AddJsonFlag(list, session);
  list->Run([&session](Connection& connection) { return ListPrices(connection, session.json); });
  Command* set =
      add("set", "Set a price, from now on or from a later time; what was used keeps its",
          "sftctl price set H100 2.10 --currency EUR --from 2027-01-01");
  set->AddOption("PRICE", options->amount, "Of an hour of one GPU: 2.10")->Required();
  set->AddOption("--currency", options->currency,
                 "Three capital letters; of the first price, whose currency all others have");
  set->AddOption("--from", options->start,
                 "Day (2027-01-01) or time (2027-01-01T12:00:00Z) in UTC; by default now");
  AddJsonFlag(set, session);
  set->Run([&session, options](Connection& connection) {
    return SetPrice(connection, *options, session.json);
  });
  Command* remove = add("remove", "Remove a price that is not in effect yet",
                        "sftctl price remove H100 --from 2027-01-01");
  remove->AddOption("--from", options->start, "Its day or time, as `sftctl price list` has it")
      ->Required();
  remove->Run([options](Connection& connection) { return RemovePrice(connection, *options); });
}

}  // namespace sft::client
