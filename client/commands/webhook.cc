#include <fmt/format.h>
#include <fmt/ranges.h>

#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "common/base/json.h"
#include "sft/v1/webhook_service.grpc.pb.h"

namespace sft::client {
namespace {

using Hooks = v1::WebhookService::Stub;
using Delivery = v1::WebhookDelivery;

struct WebhookOptions {
  std::string project;
  bool of_server = false;
  std::string id, url, events, delivery, since;
  std::string format = "standard";
  bool failed = false;
  int limit = 50;
};

// How long `test` waits for the first try, and how often it looks.
constexpr std::chrono::seconds kTestTime{60};
constexpr std::chrono::milliseconds kTestLook{200};

template <typename Request>
Request AboutHook(const WebhookOptions& options) {
  Request request;
  if (!options.of_server) request.set_project(options.project);
  request.set_of_server(options.of_server);
  if constexpr (requires { request.set_id(options.id); }) request.set_id(options.id);
  return request;
}

std::string FormatName(v1::Webhook::Format format) {
  switch (format) {
    case v1::Webhook::SLACK:
      return "slack";
    case v1::Webhook::MAIL:
      return "mail";
    case v1::Webhook::OPENAI:
      return "openai";
    default:
      return "standard";
  }
}

v1::Webhook::Format FormatOf(const WebhookOptions& options) {
  if (options.url.starts_with("mailto:")) return v1::Webhook::MAIL;
  if (options.format == "openai") return v1::Webhook::OPENAI;
  return options.format == "slack" ? v1::Webhook::SLACK : v1::Webhook::STANDARD;
}

std::string EventsText(const v1::Webhook& hook) {
  if (hook.of_jobs()) return "those that jobs of " + hook.created_by() + " ask for";
  return hook.events().empty() ? "all" : fmt::format("{}", fmt::join(hook.events(), ","));
}

std::string DeliveryStateName(Delivery::State state) {
  switch (state) {
    case Delivery::WAITING:
      return "waiting";
    case Delivery::DELIVERED:
      return "delivered";
    case Delivery::FAILED:
      return "failed";
    case Delivery::DROPPED:
      return "dropped";
    default:
      return "unknown";
  }
}

Json TimeOrNull(bool set, const google::protobuf::Timestamp& time) {
  return set ? Json(Utc(time)) : Json(nullptr);
}

Json HookJson(const v1::Webhook& hook) {
  return {
      {"id", hook.id()},
      {"project", hook.project()},
      {"url", hook.url()},
      {"format", FormatName(hook.format())},
      {"events", std::vector<std::string>(hook.events().begin(), hook.events().end())},
      {"of_jobs", hook.of_jobs()},
      {"created_by", hook.created_by()},
      {"create_time", Utc(hook.create_time())},
      {"off_time", TimeOrNull(hook.has_off_time(), hook.off_time())},
      {"off_reason", hook.off_reason()},
      {"failures", hook.failures()},
      {"last_delivery_time", TimeOrNull(hook.has_last_delivery_time(), hook.last_delivery_time())}};
}

Json DeliveryJson(const Delivery& delivery) {
  return {{"id", delivery.id()},
          {"type", delivery.type()},
          {"body", delivery.body()},
          {"create_time", Utc(delivery.create_time())},
          {"state", DeliveryStateName(delivery.state())},
          {"tries", delivery.tries()},
          {"next_try_time", TimeOrNull(delivery.has_next_try_time(), delivery.next_try_time())},
          {"last_try_time", TimeOrNull(delivery.has_last_try_time(), delivery.last_try_time())},
          {"http_status", delivery.http_status()},
          {"error", delivery.error()}};
}

ExitCode AddHook(Connection& connection, const WebhookOptions& options, bool json) {
  auto request = AboutHook<v1::AddWebhookRequest>(options);
  request.set_url(options.url);
  request.set_format(FormatOf(options));
  for (size_t at = 0; at < options.events.size();) {
    const size_t end = std::min(options.events.find(',', at), options.events.size());
    request.add_events(options.events.substr(at, end - at));
    at = end + 1;
  }
  const auto added = connection.Call(&Hooks::AddWebhook, request);
  if (!added.ok()) return Fail(connection, added.status());
  std::ostream& out = connection.console().out;
  if (json) {
    Json object = HookJson(added->webhook());
    object["secret"] = added->secret();
    out << DumpJson(object, 2) << "\n";
    return kSucceeded;
  }
  out << OneLine(added->webhook().id()) << "\n";
  if (!added->secret().empty()) {
    out << OneLine(added->secret()) << "\n";
    connection.console().err << "The second line is its secret, by which the receiver knows what "
                                "is from this server: it is not shown again.\n";
  }
  return kSucceeded;
}

ExitCode ListHooks(Connection& connection, const WebhookOptions& options, bool json) {
  const auto list =
      connection.Call(&Hooks::ListWebhooks, AboutHook<v1::ListWebhooksRequest>(options));
  if (!list.ok()) return Fail(connection, list.status());
  std::ostream& out = connection.console().out;
  if (json) {
    Json hooks = Json::array();
    for (const v1::Webhook& hook : list->webhooks()) hooks.push_back(HookJson(hook));
    out << DumpJson(hooks, 2) << "\n";
    return kSucceeded;
  }
  Table table({"WEBHOOK", "ADDRESS", "EVENTS", "LAST DELIVERY", "STATE"});
  for (const v1::Webhook& hook : list->webhooks()) {
    const std::string state = hook.has_off_time()   ? "off: " + hook.off_reason()
                              : hook.failures() > 0 ? fmt::format("failing ({})", hook.failures())
                                                    : "on";
    table.Add({hook.id(), hook.url(), EventsText(hook),
               hook.has_last_delivery_time() ? Utc(hook.last_delivery_time()) : "-", state});
  }
  out << table.Render();
  return kSucceeded;
}

// Up to `limit`, newest first.
absl::StatusOr<std::vector<Delivery>> NewestDeliveries(Connection& connection,
                                                       const WebhookOptions& options, int limit) {
  auto request = AboutHook<v1::ListWebhookDeliveriesRequest>(options);
  std::vector<Delivery> deliveries;
  while (true) {
    request.set_page_size(std::min(500, limit - static_cast<int>(deliveries.size())));
    SFT_ASSIGN_OR_RETURN(const v1::ListWebhookDeliveriesResponse page,
                         connection.Call(&Hooks::ListWebhookDeliveries, request));
    deliveries.insert(deliveries.end(), page.deliveries().begin(), page.deliveries().end());
    request.set_page_token(page.next_page_token());
    if (request.page_token().empty() || static_cast<int>(deliveries.size()) >= limit) {
      return deliveries;
    }
  }
}

void PrintDeliveries(Connection& connection, const std::vector<Delivery>& deliveries, bool json) {
  std::ostream& out = connection.console().out;
  if (json) {
    Json list = Json::array();
    for (const Delivery& delivery : deliveries) list.push_back(DeliveryJson(delivery));
    out << DumpJson(list, 2) << "\n";
    return;
  }
  Table table({"DELIVERY", "EVENT", "TIME", "STATE", "TRIES", "ANSWER"});
  for (const Delivery& delivery : deliveries) {
    const std::string status =
        delivery.http_status() > 0 ? std::to_string(delivery.http_status()) : "-";
    table.Add({delivery.id(), delivery.type(), Utc(delivery.create_time()),
               DeliveryStateName(delivery.state()), std::to_string(delivery.tries()),
               delivery.error().empty() ? status : OneLine(delivery.error())});
  }
  out << table.Render();
}

ExitCode ShowDeliveries(Connection& connection, const WebhookOptions& options, bool json) {
  const auto deliveries = NewestDeliveries(connection, options, options.limit);
  if (!deliveries.ok()) return Fail(connection, deliveries.status());
  PrintDeliveries(connection, *deliveries, json);
  return kSucceeded;
}

// Sends one and waits until it was tried.
ExitCode TestHook(Connection& connection, const WebhookOptions& options, bool json) {
  const auto sent =
      connection.Call(&Hooks::TestWebhook, AboutHook<v1::TestWebhookRequest>(options));
  if (!sent.ok()) return Fail(connection, sent.status());
  const MonoTime end = connection.clock().Mono() + kTestTime;
  Delivery tried = *sent;
  const int64_t rests_s = sent->next_try_time().seconds() - sent->create_time().seconds();
  if (sent->state() == Delivery::WAITING && rests_s > kTestTime.count()) {
    connection.console().err << fmt::format(
        "It rests after tries that failed or took long, so the test is not sent before {}: `sftctl "
        "webhook deliveries {}` then shows what came of it.\n",
        Utc(sent->next_try_time()), options.id);
    PrintDeliveries(connection, {tried}, json);
    return kUnreachable;
  }
  while (tried.state() == Delivery::WAITING && tried.tries() == 0) {
    if (connection.clock().Mono() >= end) break;
    connection.clock().Sleep(kTestLook);
    const auto newest = NewestDeliveries(connection, options, 500);
    if (!newest.ok()) return Fail(connection, newest.status());
    for (const Delivery& delivery : *newest) {
      if (delivery.id() == sent->id()) tried = delivery;
    }
  }
  PrintDeliveries(connection, {tried}, json);
  return tried.state() == Delivery::DELIVERED ? kSucceeded : kUnreachable;
}

ExitCode ReplayHook(Connection& connection, const WebhookOptions& options, bool json) {
  auto request = AboutHook<v1::ReplayWebhookRequest>(options);
  request.set_delivery(options.delivery);
  if (!options.since.empty()) {
    const auto since = ParseDuration(options.since);
    if (!since.ok()) return Fail(connection, since.status());
    request.mutable_since()->set_seconds(UnixMicros(connection.clock().Wall() - *since) /
                                         1'000'000);
  }
  const auto replayed = connection.Call(&Hooks::ReplayWebhook, request);
  if (!replayed.ok()) return Fail(connection, replayed.status());
  if (json) {
    connection.console().out << DumpJson(Json{{"deliveries", replayed->deliveries()}}, 2) << "\n";
  } else {
    connection.console().out << fmt::format("{} to be sent again\n", replayed->deliveries());
  }
  return kSucceeded;
}

ExitCode RotateHook(Connection& connection, const WebhookOptions& options, bool json) {
  const auto made =
      connection.Call(&Hooks::RotateWebhook, AboutHook<v1::RotateWebhookRequest>(options));
  if (!made.ok()) return Fail(connection, made.status());
  if (json) {
    connection.console().out << DumpJson(Json{{"secret", made->secret()}}, 2) << "\n";
    return kSucceeded;
  }
  connection.console().out << OneLine(made->secret()) << "\n";
  connection.console().err
      << "The old secret signs too for 24 hours; this one is not shown again.\n";
  return kSucceeded;
}

ExitCode RemoveHook(Connection& connection, const WebhookOptions& options) {
  const auto removed =
      connection.Call(&Hooks::RemoveWebhook, AboutHook<v1::RemoveWebhookRequest>(options));
  if (!removed.ok()) return Fail(connection, removed.status());
  return kSucceeded;
}

using SharedHookOptions = std::shared_ptr<WebhookOptions>;

// A subcommand with the options of all: whose webhooks it is about.
Command* AddOne(Command* webhook, const SharedHookOptions& options, const std::string& name,
                const std::string& description, const std::string& example) {
  Command* command = webhook->AddCommand(name, description, example);
  Option* project = AddProjectOption(command, options->project);
  command
      ->AddFlag("--of-server", options->of_server,
                "A webhook of the server: it hears of all projects, of nodes and the disk (admins)")
      ->Excludes(project);
  return command;
}

void AddAdding(Command* webhook, const SharedHookOptions& options, Session& session) {
  Command* add = AddOne(webhook, options, "add",
                        "Add an address; prints its id and, where it has one, its secret",
                        "sftctl webhook add https://example.com/hooks/sft "
                        "--events job.failed,job.succeeded");
  add->AddOption("URL", options->url, "Where to send to: https://..., or mailto:ann@example.com")
      ->Required();
  add->AddOption("--events", options->events,
                 "Only these, with commas between them (docs/webhooks.md lists them)");
  add->AddOption(
         "--format", options->format,
         "standard (Standard Webhooks), slack (one text, for Slack's incoming webhooks) or "
         "openai (fine_tuning.job.succeeded, .failed and .cancelled, for the openai client)")
      ->Among({"standard", "slack", "openai"});
  add->Check([options]() -> std::string {
    const bool mail = options->url.starts_with("mailto:");
    return mail && options->format != "standard" ? "--format is of addresses by HTTP" : "";
  });
  AddJsonFlag(add, session);
  add->Run([&session, options](Connection& connection) {
    return AddHook(connection, *options, session.json);
  });
}

void AddReplay(Command* webhook, const SharedHookOptions& options, Session& session) {
  Command* replay = AddOne(webhook, options, "replay",
                           "Send deliveries again, under their old ids; turns on one that is off",
                           "sftctl webhook replay hook-abc --failed --since 2d");
  replay->AddOption("WEBHOOK", options->id, "Webhook")->Required();
  replay->AddOption("DELIVERY", options->delivery, "Delivery");
  replay->AddFlag("--failed", options->failed, "All that failed or were dropped");
  replay->AddOption("--since", options->since, "With --failed: not older than this (2h, 3d)");
  replay->Check([options]() -> std::string {
    if (options->failed == options->delivery.empty()) return "";
    return "name a delivery, or --failed for all that failed";
  });
  AddJsonFlag(replay, session);
  replay->Run([&session, options](Connection& connection) {
    return ReplayHook(connection, *options, session.json);
  });
}

}  // namespace

void AddWebhook(Command& app, Session& session) {
  Command* webhook = app.AddCommand("webhook", "Addresses that are told of events, by HTTP or mail",
                                    "sftctl webhook add https://example.com/hooks/sft");
  webhook->RequireCommand();
  const auto options = std::make_shared<WebhookOptions>();
  AddAdding(webhook, options, session);
  Command* list = AddOne(webhook, options, "list", "List webhooks", "sftctl webhook list");
  AddJsonFlag(list, session);
  list->Run([&session, options](Connection& connection) {
    return ListHooks(connection, *options, session.json);
  });
  const auto about = [&](const char* name, const char* description, const char* example) {
    Command* command = AddOne(webhook, options, name, description, example);
    command->AddOption("WEBHOOK", options->id, "Webhook")->Required();
    return command;
  };
  Command* deliveries = about("deliveries", "What was sent, newest first, and what waits",
                              "sftctl webhook deliveries hook-abc --limit 20");
  deliveries->AddOption("--limit", options->limit, "Most deliveries to list")
      ->WholeNumber(1)
      ->ShowDefault();
  AddJsonFlag(deliveries, session);
  deliveries->Run([&session, options](Connection& connection) {
    return ShowDeliveries(connection, *options, session.json);
  });
  Command* test = about("test", "Send a test and say what came of it; turns on one that is off",
                        "sftctl webhook test hook-abc");
  AddJsonFlag(test, session);
  test->Run([&session, options](Connection& connection) {
    return TestHook(connection, *options, session.json);
  });
  AddReplay(webhook, options, session);
  Command* rotate = about("rotate", "Make a new secret; the old one signs too for 24 hours",
                          "sftctl webhook rotate hook-abc");
  AddJsonFlag(rotate, session);
  rotate->Run([&session, options](Connection& connection) {
    return RotateHook(connection, *options, session.json);
  });
  Command* remove =
      about("remove", "Remove a webhook with its deliveries", "sftctl webhook remove hook-abc");
  remove->Run([options](Connection& connection) { return RemoveHook(connection, *options); });
}

}  // namespace sft::client
