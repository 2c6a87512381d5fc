#include "server/services/operator_service.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/fleet/describe_node.h"
#include "server/fleet/fleet_stats.h"
#include "server/fleet/node_holds.h"
#include "server/store/nodes.h"

namespace sft::server {
namespace {

constexpr size_t kMaxHoldReason = 500;
constexpr int64_t kMaxMoveAfter = int64_t{365} * 24 * 3600;
constexpr std::string_view kNodePrefix = "nodes/";

std::string NodeOf(const std::string& name) {
  return name.starts_with(kNodePrefix) ? name.substr(kNodePrefix.size()) : name;
}

absl::Status CheckHold(const v1::HoldNodeRequest& request) {
  if (request.mode() != v1::NodeHold::CORDON && request.mode() != v1::NodeHold::DRAIN) {
    return InvalidArgument("a hold of a node is CORDON or DRAIN");
  }
  if (request.reason().size() > kMaxHoldReason) {
    return InvalidArgument(fmt::format("a reason has at most {} bytes", kMaxHoldReason));
  }
  if (!request.has_move_after_seconds()) return absl::OkStatus();
  if (request.mode() != v1::NodeHold::DRAIN) {
    return InvalidArgument("only jobs of a drained node are moved");
  }
  if (request.move_after_seconds() < 0 || request.move_after_seconds() > kMaxMoveAfter) {
    return InvalidArgument("jobs are moved after 0 seconds to a year");
  }
  return absl::OkStatus();
}

}  // namespace

void OperatorService::AddTo(Methods& methods) {
  const auto rule = [](std::string method, Audit audit) {
    return Rule{std::move(method), Caller::kUser, Role::kAdmin, Place::kServer, audit};
  };
  using Self = OperatorService;
  methods.Unary(rule("OperatorService.HoldNode", Audit::kChange), this, &Self::HoldNode);
  methods.Unary(rule("OperatorService.ReleaseNode", Audit::kChange), this, &Self::ReleaseNode);
  methods.Unary(rule("OperatorService.RemoveNode", Audit::kChange), this, &Self::RemoveNode);
  methods.Unary(rule("OperatorService.GetStats", Audit::kNone), this, &Self::GetStats);
  methods.Unary({"OperatorService.ListPrices", Caller::kUser, Role::kViewer, Place::kAny}, this,
                &Self::ListPrices);
  methods.Unary(rule("OperatorService.SetPrice", Audit::kChange), this, &Self::SetPrice);
  methods.Unary(rule("OperatorService.RemovePrice", Audit::kChange), this, &Self::RemovePrice);
}

absl::StatusOr<v1::Node> OperatorService::Show(Database& db, const std::string& node) {
  SFT_ASSIGN_OR_RETURN(const NodeRecord record, store::GetNode(db, node));
  SFT_ASSIGN_OR_RETURN(const NodeContext context, ReadNodeContext(db, registry_));
  return DescribeNode(db, record, context, registry_);
}

absl::StatusOr<v1::Node> OperatorService::HoldNode(CallContext& call,
                                                   const v1::HoldNodeRequest& request) {
  SFT_RETURN_IF_ERROR(CheckHold(request));
  store::NodeHold hold;
  hold.node = NodeOf(request.node());
  hold.mode = static_cast<store::HoldMode>(request.mode());
  hold.reason = request.reason();
  hold.who = call.caller().Title();
  hold.since_us = UnixMicros(clock_.Wall());
  if (request.has_move_after_seconds()) {
    hold.move_us = hold.since_us + request.move_after_seconds() * 1'000'000;
  }
  absl::StatusOr<v1::Node> response = Internal("not run");
  const absl::Status stored = store_.Write(
      [&](Database& db) -> absl::Status {
        SFT_RETURN_IF_ERROR(server::HoldNode(db, hold));
        response = Show(db, hold.node);
        return response.status();
      },
      call.audit());
  SFT_RETURN_IF_ERROR(stored);
  spdlog::info("node {}: {}", hold.node, response->unusable());
  wake_();
  return response;
}

absl::StatusOr<v1::Node> OperatorService::ReleaseNode(CallContext& call,
                                                      const v1::ReleaseNodeRequest& request) {
  const std::string node = NodeOf(request.node());
  absl::StatusOr<v1::Node> response = Internal("not run");
  const absl::Status stored = store_.Write(
      [&](Database& db) -> absl::Status {
        SFT_RETURN_IF_ERROR(
            server::ReleaseNode(db, node, call.caller().Title(), UnixMicros(clock_.Wall())));
        response = Show(db, node);
        return response.status();
      },
      call.audit());
  SFT_RETURN_IF_ERROR(stored);
  spdlog::info("node {} takes work again, says {}", node, call.caller().Title());
  wake_();
  return response;
}

absl::StatusOr<v1::RemoveNodeResponse> OperatorService::RemoveNode(
    CallContext& call, const v1::RemoveNodeRequest& request) {
  const std::string node = NodeOf(request.node());
  const absl::Status stored = store_.Write(
      [&](Database& db) {
        return server::RemoveNode(db, node, registry_.Get(node), request.force(),
                                  call.caller().Title(), UnixMicros(clock_.Wall()));
      },
      call.audit());
  SFT_RETURN_IF_ERROR(stored);
  spdlog::info("node {} is removed, says {}", node, call.caller().Title());
  wake_();
  return v1::RemoveNodeResponse();
}

absl::StatusOr<v1::Stats> OperatorService::GetStats(CallContext&,
                                                    const v1::GetStatsRequest& request) {
  SFT_ASSIGN_OR_RETURN(v1::Stats stats, ReadStats(store_, clock_, request));
  stats.set_warning(disk_.Warning());
  return stats;
}

absl::StatusOr<v1::ListPricesResponse> OperatorService::ListPrices(CallContext&,
                                                                   const v1::ListPricesRequest&) {
  return prices_.List();
}

absl::StatusOr<v1::Price> OperatorService::SetPrice(CallContext& call,
                                                    const v1::SetPriceRequest& request) {
  return prices_.Set(request, call.actor());
}

absl::StatusOr<v1::RemovePriceResponse> OperatorService::RemovePrice(
    CallContext& call, const v1::RemovePriceRequest& request) {
  SFT_RETURN_IF_ERROR(prices_.Remove(request, call.actor()));
  return v1::RemovePriceResponse();
}

}  // namespace sft::server
