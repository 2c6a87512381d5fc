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
  // Nothing is changed where anything of the request is refused. Secrets and token are files,
  // written when the limits are committed; an error then leaves those before it in place.
  absl::StatusOr<v1::Project> Set(const v1::SetProjectRequest& request, const Actor& actor);

 private:
  // Whether the secrets and the token of a request can be kept.
  absl::Status CheckFiles(const v1::SetProjectRequest& request) const;
  absl::Status WriteFiles(const v1::SetProjectRequest& request);

  Store& store_;
  Clock& clock_;
  HubModels* const hub_;
  Secrets* const secrets_;
};

}  // namespace sft::server
