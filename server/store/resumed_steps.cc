#include "server/store/resumed_steps.h"

#include "server/store/states.h"

namespace sft::server::store {

absl::StatusOr<std::vector<int64_t>> StepsResumedByLiveJobs(Database& db,
                                                            const std::string& job_id) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT DISTINCT j.resumed_step FROM jobs j WHERE j.resumed_from = ? AND "
                 "j.resumed_from != '' AND j.state " SFT_IS_LIVE
                 " AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.job_id = j.id "
                 "AND c.committed_us > 0)"));
  list.Bind(job_id);
  std::vector<int64_t> steps;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return steps;
    steps.push_back(list.Int(0));
  }
}

}  // namespace sft::server::store
