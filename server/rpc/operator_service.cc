#include "server/rpc/operator_service.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/rpc/status.h"
#include "server/core/fleet_stats.h"
#include "server/core/node_holds.h"
#include "server/core/node_view.h"
#include "server/rpc/principal.h"
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

absl::Status OperatorServiceImpl::Show(Database& db, const std::string& node, v1::Node& response) {
  SFT_ASSIGN_OR_RETURN(const NodeRecord record, store::GetNode(db, node));
  SFT_ASSIGN_OR_RETURN(const NodeContext context, ReadNodeContext(db, registry_));
  SFT_ASSIGN_OR_RETURN(response, ViewNode(db, record, context, registry_));
  return absl::OkStatus();
}

grpc::Status OperatorServiceImpl::HoldNode(grpc::ServerContext* context,
                                           const v1::HoldNodeRequest* request, v1::Node* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  if (const absl::Status status = CheckHold(*request); !status.ok()) return rpc::ToGrpc(status);
  store::NodeHold hold;
  hold.node = NodeOf(request->node());
  hold.mode = static_cast<store::HoldMode>(request->mode());
  hold.reason = request->reason();
  hold.who = PrincipalOf(*context);
  hold.since_us = UnixMicros(clock_.Wall());
  if (request->has_move_after_seconds()) {
    hold.move_us = hold.since_us + request->move_after_seconds() * 1'000'000;
  }
  const absl::Status stored = store_.Write([&](Database& db) -> absl::Status {
    response->Clear();
    SFT_RETURN_IF_ERROR(server::HoldNode(db, hold));
    return Show(db, hold.node, *response);
  });
  if (!stored.ok()) return rpc::ToGrpc(stored);
  spdlog::info("node {}: {}", hold.node, response->unusable());
  wake_();
  return grpc::Status::OK;
}

grpc::Status OperatorServiceImpl::ReleaseNode(grpc::ServerContext* context,
                                              const v1::ReleaseNodeRequest* request,
                                              v1::Node* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  const std::string node = NodeOf(request->node());
  const absl::Status stored = store_.Write([&](Database& db) -> absl::Status {
    response->Clear();
    SFT_RETURN_IF_ERROR(server::ReleaseNode(db, node));
    return Show(db, node, *response);
  });
  if (!stored.ok()) return rpc::ToGrpc(stored);
  spdlog::info("node {} takes work again, says {}", node, PrincipalOf(*context));
  wake_();
  return grpc::Status::OK;
}

grpc::Status OperatorServiceImpl::RemoveNode(grpc::ServerContext* context,
                                             const v1::RemoveNodeRequest* request,
                                             v1::RemoveNodeResponse*) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  const std::string node = NodeOf(request->node());
  const absl::Status stored = store_.Write([&](Database& db) {
    return server::RemoveNode(db, node, registry_.Get(node), request->force());
  });
  if (!stored.ok()) return rpc::ToGrpc(stored);
  spdlog::info("node {} is removed, says {}", node, PrincipalOf(*context));
  wake_();
  return grpc::Status::OK;
}

grpc::Status OperatorServiceImpl::GetStats(grpc::ServerContext* context,
                                           const v1::GetStatsRequest* request,
                                           v1::Stats* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  absl::StatusOr<v1::Stats> stats = ReadStats(store_, clock_, *request);
  if (!stats.ok()) return rpc::ToGrpc(stats.status());
  *response = *std::move(stats);
  response->set_warning(disk_.Warning());
  return grpc::Status::OK;
}

}  // namespace sft::server
