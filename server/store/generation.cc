#include "server/store/generation.h"

#include <fmt/format.h>

#include <algorithm>

namespace sft::server::store {

namespace {

// As it is stored, whatever that is.
absl::StatusOr<GenerationRecord> Stored(Database& db) {
  SFT_ASSIGN_OR_RETURN(
      Statement get,
      db.Prepare("SELECT number, replaced_by, replaced_at FROM server_generation WHERE id = 1"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Step());
  if (!row) return DataLoss("the database does not say of which generation it is");
  return GenerationRecord{get.Int(0), get.Int(1), get.Text(2)};
}

// The number after one that is stored.
int64_t After(int64_t number) { return IsGeneration(number) ? number + 1 : kFirstGeneration; }

}  // namespace

absl::StatusOr<GenerationRecord> GetGeneration(Database& db) {
  SFT_ASSIGN_OR_RETURN(GenerationRecord record, Stored(db));
  for (const int64_t number : {record.number, record.replaced_by}) {
    if (IsGeneration(number) || (number == 0 && number == record.replaced_by)) continue;
    return DataLoss(fmt::format(
        "the database says that a server is of generation {}, which none can be: it was damaged or "
        "changed. `sft-server takeover --data-dir` with its folder gives it one that can; if more "
        "of it may be damaged, restore the last backup (sft-server --restore)",
        number));
  }
  return record;
}

absl::StatusOr<int64_t> RaiseGeneration(Database& db, int64_t now_us, int64_t above) {
  SFT_ASSIGN_OR_RETURN(const GenerationRecord was, Stored(db));
  const int64_t number = std::max({After(was.number), After(was.replaced_by),
                                   std::min(above, kLastGeneration) + 1, now_us / 1'000'000});
  if (!IsGeneration(number)) {
    return OutOfRange(fmt::format(
        "there is no generation above {}: if a worker has obeyed that one, remove the file "
        "`generation` of its data folder while it is stopped",
        number - 1));
  }
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
