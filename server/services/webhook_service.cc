#include "server/services/webhook_service.h"

#include "server/door/page_token.h"
#include "server/store/jobs.h"

namespace sft::server {
namespace {

// Whose hooks the call is about: those of its project, or, with an empty name, the server's.
template <typename Request>
absl::StatusOr<std::string> OwnerOf(const CallContext& call, const Request& request) {
  if (!request.of_server()) return call.project();
  if (call.caller().admin) return std::string();
  return PermissionDenied("the server's webhooks are its admins'");
}

}  // namespace

void WebhookService::AddTo(Methods& methods) {
  const auto rule = [](std::string method, Role role, Audit audit) {
    return Rule{std::move(method), Caller::kUser, role, Place::kProject, audit};
  };
  const auto change = [&](std::string method) {
    return rule(std::move(method), Role::kSubmitter, Audit::kChange);
  };
  using Self = WebhookService;
  methods.Unary(change("WebhookService.AddWebhook"), this, &Self::AddWebhook);
  methods.Unary(rule("WebhookService.ListWebhooks", Role::kViewer, Audit::kNone), this,
                &Self::ListWebhooks);
  methods.Unary(rule("WebhookService.ListWebhookDeliveries", Role::kViewer, Audit::kNone), this,
                &Self::ListWebhookDeliveries);
  methods.Unary(change("WebhookService.TestWebhook"), this, &Self::TestWebhook);
  methods.Unary(change("WebhookService.ReplayWebhook"), this, &Self::ReplayWebhook);
  methods.Unary(change("WebhookService.RotateWebhook"), this, &Self::RotateWebhook);
  methods.Unary(change("WebhookService.RemoveWebhook"), this, &Self::RemoveWebhook);
}

absl::StatusOr<v1::AddWebhookResponse> WebhookService::AddWebhook(
    CallContext& call, const v1::AddWebhookRequest& request) {
  SFT_ASSIGN_OR_RETURN(const std::string owner, OwnerOf(call, request));
  return webhooks_.Add(owner, request, call.actor());
}

absl::StatusOr<v1::ListWebhooksResponse> WebhookService::ListWebhooks(
    CallContext& call, const v1::ListWebhooksRequest& request) {
  SFT_ASSIGN_OR_RETURN(const std::string owner, OwnerOf(call, request));
  return webhooks_.List(owner);
}

absl::StatusOr<v1::ListWebhookDeliveriesResponse> WebhookService::ListWebhookDeliveries(
    CallContext& call, const v1::ListWebhookDeliveriesRequest& request) {
  SFT_ASSIGN_OR_RETURN(const std::string owner, OwnerOf(call, request));
  SFT_ASSIGN_OR_RETURN(const int limit, PageSize(request.page_size(), store::kMaxPage));
  SFT_ASSIGN_OR_RETURN(const int64_t before, FromToken(request.page_token()));
  int64_t last = 0;
  SFT_ASSIGN_OR_RETURN(v1::ListWebhookDeliveriesResponse page,
                       webhooks_.Deliveries(owner, request.id(), before, limit, last));
  if (page.deliveries_size() == limit) page.set_next_page_token(ToToken(last));
  return page;
}

absl::StatusOr<v1::WebhookDelivery> WebhookService::TestWebhook(
    CallContext& call, const v1::TestWebhookRequest& request) {
  SFT_ASSIGN_OR_RETURN(const std::string owner, OwnerOf(call, request));
  return webhooks_.Test(owner, request.id(), call.actor());
}

absl::StatusOr<v1::ReplayWebhookResponse> WebhookService::ReplayWebhook(
    CallContext& call, const v1::ReplayWebhookRequest& request) {
  SFT_ASSIGN_OR_RETURN(const std::string owner, OwnerOf(call, request));
  return webhooks_.Replay(owner, request, call.actor());
}

absl::StatusOr<v1::RotateWebhookResponse> WebhookService::RotateWebhook(
    CallContext& call, const v1::RotateWebhookRequest& request) {
  SFT_ASSIGN_OR_RETURN(const std::string owner, OwnerOf(call, request));
  return webhooks_.Rotate(owner, request.id(), call.actor());
}

absl::StatusOr<v1::RemoveWebhookResponse> WebhookService::RemoveWebhook(
    CallContext& call, const v1::RemoveWebhookRequest& request) {
  SFT_ASSIGN_OR_RETURN(const std::string owner, OwnerOf(call, request));
  SFT_RETURN_IF_ERROR(webhooks_.Remove(owner, request.id(), call.actor()));
  return v1::RemoveWebhookResponse();
}

}  // namespace sft::server
