#include "server/store/generation.h"

#include <algorithm>

namespace sft::server::store {

absl::StatusOr<GenerationRecord> GetGeneration(Database& db) {
  SFT_ASSIGN_OR_RETURN(
      Statement get,
      db.Prepare("SELECT number, replaced_by, replaced_at FROM server_generation WHERE id = 1"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Step());
  if (!row) return DataLoss("the database does not say of which generation it is");
  return GenerationRecord{get.Int(0), get.Int(1), get.Text(2)};
}

absl::StatusOr<int64_t> RaiseGeneration(Database& db, int64_t now_us, int64_t above) {
  SFT_ASSIGN_OR_RETURN(const GenerationRecord was, GetGeneration(db));
  const int64_t number =
      std::max({was.number + 1, was.replaced_by + 1, above + 1, now_us / 1'000'000});
  SFT_ASSIGN_OR_RETURN(Statement set,
                       db.Prepare("UPDATE server_generation SET number = ?, replaced_by = 0, "
                                  "replaced_at = '' WHERE id = 1"));
  SFT_RETURN_IF_ERROR(set.Bind(number).Run());
  return number;
}

absl::Status SetReplaced(Database& db, int64_t generation, const std::string& address) {
  SFT_ASSIGN_OR_RETURN(Statement set,
                       db.Prepare("UPDATE server_generation SET replaced_by = ?, replaced_at = ? "
                                  "WHERE id = 1 AND number < ?"));
  return set.Bind(generation).Bind(address).Bind(generation).Run();
}

}  // namespace sft::server::store
