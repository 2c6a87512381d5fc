#pragma once

#include "server/door/methods.h"
#include "server/webhooks/webhooks.h"
#include "sft/v1/webhook_service.pb.h"

namespace sft::server {

// WebhookService: addresses that are told of events, of projects and of the server.
class WebhookService final {
 public:
  explicit WebhookService(Webhooks& webhooks) : webhooks_(webhooks) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);

  absl::StatusOr<v1::AddWebhookResponse> AddWebhook(CallContext& call,
                                                    const v1::AddWebhookRequest& request);
  absl::StatusOr<v1::ListWebhooksResponse> ListWebhooks(CallContext& call,
                                                        const v1::ListWebhooksRequest& request);
  absl::StatusOr<v1::ListWebhookDeliveriesResponse> ListWebhookDeliveries(
      CallContext& call, const v1::ListWebhookDeliveriesRequest& request);
  absl::StatusOr<v1::WebhookDelivery> TestWebhook(CallContext& call,
                                                  const v1::TestWebhookRequest& request);
  absl::StatusOr<v1::ReplayWebhookResponse> ReplayWebhook(CallContext& call,
                                                          const v1::ReplayWebhookRequest& request);
  absl::StatusOr<v1::RotateWebhookResponse> RotateWebhook(CallContext& call,
                                                          const v1::RotateWebhookRequest& request);
  absl::StatusOr<v1::RemoveWebhookResponse> RemoveWebhook(CallContext& call,
                                                          const v1::RemoveWebhookRequest& request);

 private:
  Webhooks& webhooks_;
};

}  // namespace sft::server
