#pragma once

#include "common/base/clock.h"
#include "server/fleet/hub_models.h"
#include "server/jobs/secrets.h"
#include "server/store/store.h"
#include "sft/v1/scheduling_service.pb.h"

namespace sft::server {

// What projects may use, and what they use now. Thread-safe.
class Projects {
 public:
  // `hub` keeps the projects' tokens, `secrets` their secrets; null: there are none.
  Projects(Store& store, Clock& clock, HubModels* hub = nullptr, Secrets* secrets = nullptr)
      : store_(store), clock_(clock), hub_(hub), secrets_(secrets) {}

  absl::StatusOr<v1::ListProjectsResponse> List();
  absl::StatusOr<v1::Project> Set(const v1::SetProjectRequest& request, const Actor& actor);

 private:
  // Of a request; all of them are sound before the first is kept.
  absl::Status SetSecrets(const v1::SetProjectRequest& request);

  Store& store_;
  Clock& clock_;
  HubModels* const hub_;
  Secrets* const secrets_;
};

}  // namespace sft::server
