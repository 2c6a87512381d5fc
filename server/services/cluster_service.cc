#include "server/services/cluster_service.h"

#include <fmt/format.h>

#include <chrono>
#include <map>

#include "common/base/clock.h"
#include "common/base/version.h"
#include "common/hub/model_name.h"
#include "common/rpc/version.h"
#include "server/core/convert.h"
#include "server/door/page_token.h"
#include "server/fleet/describe_node.h"
#include "server/fleet/node_holds.h"
#include "server/resume/job_folders.h"
#include "server/state/names.h"
#include "server/store/jobs.h"
#include "server/store/node_holds.h"
#include "server/store/nodes.h"
#include "server/store/tenancy.h"

namespace sft::server {
namespace {

constexpr std::chrono::seconds kPlanning{1};

// Nodes that have the variant's slots, and those that have them free now.
void CountNodes(const std::vector<NodeRecord>& nodes,
                const std::map<std::string, store::NodeHold>& holds, const WorkerRegistry& registry,
                v1::Variant& variant) {
  for (const NodeRecord& node : nodes) {
    int all = 0, free = 0;
    for (const SlotRecord& slot : node.slots) {
      if (slot.gpu_type != variant.gpu_type() || !slot.healthy) continue;
      ++all;
      free += slot.job_id.empty() ? 1 : 0;
    }
    const auto hold = holds.find(node.name);
    const bool usable =
        WhyUnusable(node, registry.Get(node.name), hold == holds.end() ? nullptr : &hold->second)
            .empty();
    if (all >= variant.gpus_per_node()) variant.set_nodes(variant.nodes() + 1);
    if (usable && free >= variant.gpus_per_node()) variant.set_nodes_free(variant.nodes_free() + 1);
  }
}

// A slot of a job that the caller may not see is taken by "another project".
absl::Status HideOthers(Database& db, const Principal& caller, v1::Slot& slot) {
  if (caller.admin || slot.job().empty()) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const std::string project, store::ProjectOfJob(db, slot.job()));
  if (caller.RoleIn(project) == Role::kNone) slot.set_job("another project");
  return absl::OkStatus();
}

}  // namespace

void ClusterService::AddTo(Methods& methods) {
  using enum Caller;
  using enum Place;
  using Self = ClusterService;
  // Before it knows its role a client asks for the server's version.
  methods.Unary({"ClusterService.GetServerInfo", kEither, Role::kNone, kAny}, this,
                &Self::GetServerInfo);
  methods.Unary({"ClusterService.ListNodes", kUser, Role::kViewer, kAny}, this, &Self::ListNodes);
  methods.Unary({"ClusterService.GetNodeHistory", kUser, Role::kViewer, kAny}, this,
                &Self::GetNodeHistory);
  methods.Unary({"ClusterService.ListVariants", kUser, Role::kViewer, kAny}, this,
                &Self::ListVariants);
  methods.Unary({"ClusterService.ListModels", kUser, Role::kViewer, kAny}, this, &Self::ListModels);
  methods.ServerStream({"ClusterService.ReadTokenizer", kUser, Role::kViewer, kAny}, this,
                       &Self::ReadTokenizer);
  methods.Unary({"ClusterService.ListClusterEvents", kUser, Role::kViewer, kOwn}, this,
                &Self::ListClusterEvents);
  methods.Follow({"ClusterService.WatchClusterEvents", kUser, Role::kViewer, kOwn}, this,
                 &Self::WatchClusterEvents);
  methods.Unary({"ClusterService.PullModel", kUser, Role::kAdmin, kServer, Audit::kChange}, this,
                &Self::PullModel);
  methods.Unary({"ClusterService.RemoveModel", kUser, Role::kAdmin, kServer, Audit::kChange}, this,
                &Self::RemoveModel);
}

// An old client is answered too: it decides by these numbers.
absl::StatusOr<v1::ServerInfo> ClusterService::GetServerInfo(CallContext&,
                                                             const v1::GetServerInfoRequest&) {
  v1::ServerInfo response;
  response.set_version(kVersion);
  response.set_protocol(kProtocol);
  response.set_min_protocol(rpc::MinProtocol());
  response.set_dev(dev_);
  response.set_time_us(registry_.now_us());
  response.set_generation(generation_.number());
  return response;
}

absl::StatusOr<v1::ListNodesResponse> ClusterService::ListNodes(
    CallContext& call, const v1::ListNodesRequest& request) {
  SFT_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size(), store::kMaxPage));
  v1::ListNodesResponse response;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    // The token of this list is the last node's name.
    SFT_ASSIGN_OR_RETURN(const std::vector<NodeRecord> nodes,
                         store::ListNodes(db, request.page_token(), size));
    SFT_ASSIGN_OR_RETURN(const NodeContext known, ReadNodeContext(db, registry_));
    for (const NodeRecord& node : nodes) {
      SFT_ASSIGN_OR_RETURN(v1::Node added, DescribeNode(db, node, known, registry_));
      for (v1::Slot& slot : *added.mutable_slots()) {
        SFT_RETURN_IF_ERROR(HideOthers(db, call.caller(), slot));
      }
      if (added.has_hold() && !call.caller().admin) added.mutable_hold()->clear_jobs();
      *response.add_nodes() = std::move(added);
    }
    if (static_cast<int>(nodes.size()) == size) response.set_next_page_token(nodes.back().name);
    return absl::OkStatus();
  }));
  if (disk_ != nullptr) response.set_warning(disk_->Warning());
  return response;
}

absl::StatusOr<v1::ListVariantsResponse> ClusterService::ListVariants(
    CallContext&, const v1::ListVariantsRequest& request) {
  SFT_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size(), store::kMaxPage));
  SFT_ASSIGN_OR_RETURN(const int64_t offset, FromToken(request.page_token()));
  std::vector<VariantRecord> variants;
  std::vector<NodeRecord> nodes;
  std::map<std::string, store::NodeHold> holds;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(variants, store::ListVariants(db));
    SFT_ASSIGN_OR_RETURN(nodes, store::AllNodes(db));
    SFT_ASSIGN_OR_RETURN(holds, store::Holds(db));
    return absl::OkStatus();
  }));
  v1::ListVariantsResponse response;
  for (int64_t i = offset; i < static_cast<int64_t>(variants.size()); ++i) {
    if (response.variants_size() == size) {
      response.set_next_page_token(ToToken(i));
      break;
    }
    v1::Variant& added = *response.add_variants();
    added.set_name(variants[i].name);
    added.set_gpu_type(variants[i].gpu_type);
    added.set_gpus_per_node(variants[i].gpus_per_node);
    CountNodes(nodes, holds, registry_, added);
  }
  return response;
}

// What each model needs is planned, at most for kPlanning in a call: the page ends there, and the
// next begins with the model after it.
absl::StatusOr<v1::ListModelsResponse> ClusterService::ListModels(
    CallContext& call, const v1::ListModelsRequest& request) {
  SFT_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size(), kDefaultPageSize));
  SFT_ASSIGN_OR_RETURN(const int64_t offset, FromToken(request.page_token()));
  const FolderReader reader{call.caller().Title(), ""};
  v1::ListModelsResponse response;
  std::vector<ModelRecord> models;
  std::vector<bool> shown;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(models, store::ListModels(db, static_cast<int>(offset), size));
    for (const ModelRecord& model : models) {
      SFT_ASSIGN_OR_RETURN(const bool may, MayRead(db, reader, {model.id, model.path}));
      shown.push_back(may);
    }
    return absl::OkStatus();
  }));
  // Outside of the transaction.
  const MonoTime begin = Clock::Real().Mono();
  size_t done = 0;
  while (done < models.size()) {
    if (shown[done]) *response.add_models() = models_.Describe(models[done]);
    ++done;
    if (call.Gone()) return absl::CancelledError("the caller has gone");
    if (Clock::Real().Mono() - begin > kPlanning) break;
  }
  if (done < models.size() || static_cast<int>(done) == size) {
    response.set_next_page_token(ToToken(offset + static_cast<int64_t>(done)));
    return response;
  }
  for (auto& [node, download] : registry_.Downloads()) {
    v1::NodeModel& added = *response.add_models();
    added.set_node(node);
    added.mutable_model()->set_id(download.id());
    *added.mutable_download() = std::move(download);
  }
  return response;
}

absl::Status ClusterService::ReadTokenizer(CallContext& call,
                                           const v1::ReadTokenizerRequest& request,
                                           Sink<v1::ReadTokenizerResponse>& sink) {
  return copies_.SendTokenizer(
      request.model(), {call.caller().Title(), ""},
      [&](std::string_view file, std::string bytes) {
        v1::ReadTokenizerResponse part;
        part.set_file(file.data(), file.size());
        part.set_data(std::move(bytes));
        return sink.Write(part);
      },
      [&] { return call.Gone(); });
}

absl::StatusOr<std::vector<std::string>> ClusterService::Downloaders(
    const google::protobuf::RepeatedPtrField<std::string>& asked) {
  std::map<std::string, store::NodeFacts> facts;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(facts, store::AllFacts(db));
    return absl::OkStatus();
  }));
  const auto why_not = [&](const std::string& node) -> std::string {
    const auto found = facts.find(node);
    v1::NodeFacts said;
    if (found == facts.end() || !said.ParseFromString(found->second.facts)) return "is not known";
    if (!registry_.Get(node).connected) return "is not connected";
    return said.hub().endpoint().empty() ? "has no --model-cache, or HF_HUB_OFFLINE" : "";
  };
  std::vector<std::string> nodes;
  for (const std::string& named : asked) {
    const std::string node = named.starts_with("nodes/") ? named.substr(6) : named;
    if (const std::string why = why_not(node); !why.empty()) {
      return FailedPrecondition(fmt::format("node {} {}", node, why));
    }
    nodes.push_back(node);
  }
  if (!asked.empty()) return nodes;
  for (const auto& [node, each] : facts) {
    if (why_not(node).empty()) nodes.push_back(node);
  }
  if (nodes.empty()) {
    return FailedPrecondition(
        "no connected node downloads models: start workers with --model-cache FOLDER");
  }
  return nodes;
}

// The row of a change that is not in the database.
absl::Status ClusterService::Audited(CallContext& call) {
  return store_.Write([](Database&) { return absl::OkStatus(); }, call.actor().audit);
}

absl::StatusOr<v1::PullModelResponse> ClusterService::PullModel(
    CallContext& call, const v1::PullModelRequest& request) {
  auto name = hub::ParseModelName(request.model());
  if (!name) {
    return InvalidArgument(fmt::format("\"{}\" is neither org/name nor org/name@revision",
                                       request.model().substr(0, 100)));
  }
  if (!request.project().empty() && !IsValidLabel(request.project())) {
    return InvalidArgument("the project's name is not one");
  }
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> nodes, Downloaders(request.nodes()));
  // All nodes get the same commit; where the server may not ask, each sees for itself.
  if (!hub_.offline()) {
    SFT_ASSIGN_OR_RETURN(const HubModels::Found found, hub_.Ask(*name, request.project()));
    name->revision = found.commit;
  }
  v1::ServerMessage message;
  v1::ModelRequest& asked = *message.mutable_model_request();
  asked.set_model(name->Text());
  SFT_ASSIGN_OR_RETURN(*asked.mutable_token(), hub_.TokenOf(request.project()));
  SFT_RETURN_IF_ERROR(Audited(call));
  v1::PullModelResponse response;
  response.set_model(name->Text());
  for (const std::string& node : nodes) {
    if (registry_.Send(node, message)) response.add_nodes(node);
  }
  return response;
}

absl::StatusOr<v1::RemoveModelResponse> ClusterService::RemoveModel(
    CallContext& call, const v1::RemoveModelRequest& request) {
  const auto name = hub::ParseModelName(request.model());
  if (!name || !name->revision.empty()) {
    return InvalidArgument(
        fmt::format("\"{}\" is not org/name: all revisions of a model are removed",
                    request.model().substr(0, 100)));
  }
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> nodes, Downloaders(request.nodes()));
  v1::ServerMessage message;
  message.mutable_model_request()->set_model(name->id);
  message.mutable_model_request()->set_remove(true);
  SFT_RETURN_IF_ERROR(Audited(call));
  v1::RemoveModelResponse response;
  for (const std::string& node : nodes) {
    if (registry_.Send(node, message)) response.add_nodes(node);
  }
  return response;
}

}  // namespace sft::server
