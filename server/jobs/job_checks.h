#pragma once

#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/spec/resolve.h"
#include "server/fleet/fleet_catalog.h"
#include "server/resume/job_folders.h"
#include "server/scheduling/planning.h"
#include "server/store/store.h"

// Checks of a resolved job file that need the fleet: types, variants, models. Each adds its
// problems and warnings to the resolution.

namespace sft::server {

// What `key` came to, or nullptr.
const spec::ResolvedValue* FindValue(const spec::Resolution& resolution, std::string_view key);
// The key by which the job asked for so many GPUs of a node.
std::string_view KeyOfCount(const spec::Resolution& resolution);

// Under the key and line that a person wrote to get the value of `key`.
void AddProblem(spec::Resolution& resolution, std::string_view key, std::string message);

// Whether something was said of this key already, so that more would be noise.
bool IsFaulty(const spec::Resolution& resolution, std::string_view key);

// Whether some node has so many GPUs of the job's type.
void CheckVariant(const FleetCatalog::Fleet& fleet, spec::Resolution& resolution);
// Whether some node runs programs that grade answers, for a job that names some.
void CheckGraderPrograms(const FleetCatalog::Fleet& fleet, spec::Resolution& resolution);
// Whether some node has the job's model and can use it. Nothing is said of models of other
// projects.
absl::Status CheckModel(Store& store, FleetCatalog& fleet, const FolderReader& reader,
                        spec::Resolution& resolution);
// A file that was written for another day: the job would be late whatever happens.
void WarnLate(WallTime now, spec::Resolution& resolution);
// A layout that was taken since a step has fewer rows than there are GPUs, and that no plan vouches
// for, gives way to one that goes with the model; without one few rows are the job's problem.
void LeaveUnplanned(const Planner::LayoutChoice& choice, const spec::JobText& text,
                    spec::Resolution& resolution);
// The layout that the plan chose, or a warning where another would be clearly faster.
void SetLayout(const Planner::LayoutChoice& choice, spec::Resolution& resolution);
// What "auto" became of the types of weights and states, with a warning where they are not fp32.
void SetPrecision(spec::JobSpec chosen, spec::Resolution& resolution);
// A job that does not say in which type its ranks compute gets what the nodes of its GPU type
// choose: where they pretend their GPUs, that is what a CPU chooses.
void ResolveComputeType(const FleetCatalog::Fleet& fleet, spec::Resolution& resolution);

}  // namespace sft::server
