#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/spec/resolve.h"
#include "server/state/records.h"
#include "server/store/store.h"

namespace sft::server {

// Gives Resolve the day that the job's template prints: that of the job that it goes on with
// (`resumed`; null: none), so that its rows stay the same tokens, else that of the submission.
void SetDay(WallTime now, const JobRecord* resumed, spec::ResolveOptions& options);

// A job that answers with what another has trained, or exports it, gives the template what that one
// gave it (data.template_arguments), unless it says something else. `project`: whose jobs are
// meant; empty: nobody's.
absl::Status TakeTemplateArguments(Store& store, const std::string& project,
                                   spec::Resolution& resolution);

// Whether somebody has said which day the template prints. A worker that does not know the key then
// may not have the job, whatever its template is.
bool GivesDay(const spec::Resolution& resolution);

}  // namespace sft::server
