#include "server/rpc/cluster_service.h"

#include "common/base/version.h"
#include "common/rpc/status.h"
#include "common/rpc/version.h"
#include "server/core/convert.h"
#include "server/core/node_health.h"
#include "server/rpc/page_token.h"
#include "server/rpc/principal.h"
#include "server/store/jobs.h"
#include "server/store/nodes.h"

namespace sft::server {
namespace {

// Nodes that have the variant's slots, and those that have them free now.
void CountNodes(const std::vector<NodeRecord>& nodes, const WorkerRegistry& registry,
                v1::Variant& variant) {
  for (const NodeRecord& node : nodes) {
    int all = 0, free = 0;
    for (const SlotRecord& slot : node.slots) {
      if (slot.gpu_type != variant.gpu_type() || !slot.healthy) continue;
      ++all;
      free += slot.job_id.empty() ? 1 : 0;
    }
    const WorkerRegistry::Live live = registry.Get(node.name);
    const bool usable = live.connected && !live.silent;
    if (all >= variant.gpus_per_node()) variant.set_nodes(variant.nodes() + 1);
    if (usable && free >= variant.gpus_per_node()) variant.set_nodes_free(variant.nodes_free() + 1);
  }
}

}  // namespace

grpc::Status ClusterServiceImpl::GetServerInfo(grpc::ServerContext* context,
                                               const v1::GetServerInfoRequest* request,
                                               v1::ServerInfo* response) {
  if (const auto status = CheckPrincipal(*context); !status.ok()) return status;
  (void)request;  // an old client is answered too: it decides by the numbers below
  response->set_version(kVersion);
  response->set_protocol(kProtocol);
  response->set_min_protocol(rpc::MinProtocol());
  response->set_dev(dev_);
  return grpc::Status::OK;
}

grpc::Status ClusterServiceImpl::ListNodes(grpc::ServerContext* context,
                                           const v1::ListNodesRequest* request,
                                           v1::ListNodesResponse* response) {
  if (const auto status = CheckPrincipal(*context); !status.ok()) return status;
  const absl::StatusOr<int> size = PageSize(request->page_size(), store::kMaxPage);
  if (!size.ok()) return rpc::ToGrpc(size.status());
  const absl::Status read = store_.Read([&](Database& db) -> absl::Status {
    // The token of this list is the last node's name.
    SFT_ASSIGN_OR_RETURN(const std::vector<NodeRecord> nodes,
                         store::ListNodes(db, request->page_token(), *size));
    SFT_ASSIGN_OR_RETURN(const auto scores,
                         NodeScores(db, registry_.now_us(), registry_.options().score));
    for (const NodeRecord& node : nodes) {
      const WorkerRegistry::Live live = registry_.Get(node.name);
      v1::Node& added = *response->add_nodes();
      added = ToProto(node);
      if (live.last_seen != WallTime()) {
        *added.mutable_last_seen() = ToTimestamp(UnixMicros(live.last_seen));
      }
      if (!live.connected && added.reason().empty()) added.set_reason("not connected now");
      if (const auto score = scores.find(node.name); score != scores.end()) {
        added.set_left_out(score->second.reason);
      }
      for (v1::Slot& slot : *added.mutable_slots()) {
        const auto use = live.use.find(slot.index());
        if (use == live.use.end()) continue;
        slot.set_memory_used_bytes(use->second.first);
        slot.set_utilization_percent(use->second.second);
      }
    }
    if (static_cast<int>(nodes.size()) == *size) response->set_next_page_token(nodes.back().name);
    return absl::OkStatus();
  });
  return rpc::ToGrpc(read);
}

grpc::Status ClusterServiceImpl::ListVariants(grpc::ServerContext* context,
                                              const v1::ListVariantsRequest* request,
                                              v1::ListVariantsResponse* response) {
  if (const auto status = CheckPrincipal(*context); !status.ok()) return status;
  const absl::StatusOr<int> size = PageSize(request->page_size(), store::kMaxPage);
  if (!size.ok()) return rpc::ToGrpc(size.status());
  const absl::StatusOr<int64_t> offset = FromToken(request->page_token());
  if (!offset.ok()) return rpc::ToGrpc(offset.status());
  std::vector<VariantRecord> variants;
  std::vector<NodeRecord> nodes;
  const absl::Status read = store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(variants, store::ListVariants(db));
    SFT_ASSIGN_OR_RETURN(nodes, store::ListNodes(db, "", store::kMaxPage));
    return absl::OkStatus();
  });
  for (int64_t i = *offset; i < static_cast<int64_t>(variants.size()); ++i) {
    if (response->variants_size() == *size) {
      response->set_next_page_token(ToToken(i));
      break;
    }
    v1::Variant& added = *response->add_variants();
    added.set_name(variants[i].name);
    added.set_gpu_type(variants[i].gpu_type);
    added.set_gpus_per_node(variants[i].gpus_per_node);
    CountNodes(nodes, registry_, added);
  }
  return rpc::ToGrpc(read);
}

grpc::Status ClusterServiceImpl::ListModels(grpc::ServerContext* context,
                                            const v1::ListModelsRequest* request,
                                            v1::ListModelsResponse* response) {
  if (const auto status = CheckPrincipal(*context); !status.ok()) return status;
  const absl::StatusOr<int> size = PageSize(request->page_size(), store::kMaxPage);
  if (!size.ok()) return rpc::ToGrpc(size.status());
  const absl::StatusOr<int64_t> offset = FromToken(request->page_token());
  if (!offset.ok()) return rpc::ToGrpc(offset.status());
  const absl::Status read = store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const std::vector<ModelRecord> models,
                         store::ListModels(db, static_cast<int>(*offset), *size));
    for (const ModelRecord& model : models) {
      v1::NodeModel& added = *response->add_models();
      added.set_node(model.node);
      *added.mutable_model() = ToProto(model);
    }
    if (static_cast<int>(models.size()) == *size) {
      response->set_next_page_token(ToToken(*offset + *size));
    }
    return absl::OkStatus();
  });
  return rpc::ToGrpc(read);
}

}  // namespace sft::server
