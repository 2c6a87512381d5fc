#include "server/store/judge_calls.h"

namespace sft::server::store {

absl::StatusOr<int64_t> JudgeCalls(Database& db, const std::string& job_id,
                                   const std::string& grader) {
  SFT_ASSIGN_OR_RETURN(Statement query,
                       db.Prepare("SELECT calls FROM judge_calls WHERE job_id = ? AND grader = ?"));
  query.Bind(job_id).Bind(grader);
  SFT_ASSIGN_OR_RETURN(const bool found, query.Step());
  return found ? query.Int(0) : 0;
}

absl::Status AddJudgeCalls(Database& db, const std::string& job_id, const std::string& grader,
                           int calls) {
  SFT_ASSIGN_OR_RETURN(
      Statement insert,
      db.Prepare("INSERT INTO judge_calls (job_id, grader, calls) VALUES (?, ?, ?) "
                 "ON CONFLICT (job_id, grader) DO UPDATE SET calls = calls + ?"));
  insert.Bind(job_id).Bind(grader).Bind(calls).Bind(calls);
  return insert.Run();
}

}  // namespace sft::server::store
