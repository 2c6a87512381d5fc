#pragma once

#include <string>

#include "common/spec/resolve.h"
#include "server/fleet/fleet_catalog.h"
#include "server/fleet/hub_models.h"
#include "server/state/records.h"
#include "server/store/store.h"

namespace sft::server {

// A job as job.model ("job-2f8c...") stands for the full model that it delivered: gives the job
// that model's folder. A job that has delivered none is a problem of job.model; what is no job
// stays as it is. `project`: whose jobs are meant; empty: all, for who may read them.
absl::Status TakeModelOfJob(Store& store, const std::string& project, spec::Resolution& resolution);

// Gives a job's hub model ("org/name", "org/name@revision") the commit that it means now, where
// nodes download models: all nodes of the job get the same, on whatever day they begin. A job that
// goes on with another (`resumed`; null: none) has that one's; a name alone means the copy that a
// node has; else the hub is asked with the token of the project. What the hub lacks or does not
// show is a problem of job.model; where it cannot be asked, a warning. `hub` null: nothing is
// asked.
absl::Status PinModel(FleetCatalog& fleet, HubModels* hub, const std::string& project,
                      const JobRecord* resumed, spec::Resolution& resolution);

}  // namespace sft::server
