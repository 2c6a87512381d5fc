#include "server/store/history.h"

#include <charconv>

namespace sft::server::store {
namespace {

// A cursor's key as the number that it is; 0 at the start.
int64_t KeyOf(const HistoryCursor& cursor) {
  int64_t key = 0;
  std::from_chars(cursor.key.data(), cursor.key.data() + cursor.key.size(), key);
  return key;
}

HeldSlot ReadSlot(const Statement& row) {
  return {row.Text(2), row.Text(3), row.Text(4), row.Text(5), row.Text(7), row.Int(6), row.Int(1)};
}

}  // namespace

absl::StatusOr<std::vector<HeldSlot>> FreedSlots(Database& db, HistoryCursor& cursor, int limit) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT a.id, a.freed_us, a.node, g.gpu_type, j.project, j.owner, a.created_us, "
                 "j.gpu_type FROM allocations a JOIN gpus g ON g.node = a.node AND g.slot = a.slot "
                 "JOIN jobs j "
                 "ON j.id = a.job_id WHERE a.freed_us IS NOT NULL AND (a.freed_us, a.id) > (?, ?) "
                 "ORDER BY a.freed_us, a.id LIMIT ?"));
  list.Bind(cursor.time_us).Bind(KeyOf(cursor)).Bind(limit);
  std::vector<HeldSlot> slots;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return slots;
    cursor = {list.Int(1), std::to_string(list.Int(0))};
    slots.push_back(ReadSlot(list));
  }
}

absl::StatusOr<std::vector<HeldSlot>> HeldSlots(Database& db, HistoryCursor& cursor, int limit) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT a.slot, CASE n.removed WHEN 1 THEN n.last_seen_us ELSE 0 END, a.node, "
                 "g.gpu_type, j.project, j.owner, a.created_us, j.gpu_type FROM allocations a JOIN "
                 "gpus g ON "
                 "g.node = a.node AND g.slot = a.slot JOIN jobs j ON j.id = a.job_id JOIN nodes n "
                 "ON n.name = a.node WHERE a.freed_us IS NULL AND (a.node, a.slot) > (?, ?) ORDER "
                 "BY a.node, a.slot LIMIT ?"));
  list.Bind(cursor.key).Bind(cursor.time_us).Bind(limit);
  std::vector<HeldSlot> slots;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return slots;
    cursor = {list.Int(0), list.Text(2)};
    slots.push_back(ReadSlot(list));
  }
}

absl::StatusOr<std::vector<EndedJob>> EndedJobs(Database& db, HistoryCursor& cursor, int limit) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT ended_us, sequence, project, owner, state FROM jobs WHERE ended_us > 0 "
                 "AND (ended_us, sequence) > (?, ?) ORDER BY ended_us, sequence LIMIT ?"));
  list.Bind(cursor.time_us).Bind(KeyOf(cursor)).Bind(limit);
  std::vector<EndedJob> jobs;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return jobs;
    cursor = {list.Int(0), std::to_string(list.Int(1))};
    jobs.push_back({list.Text(2), list.Text(3), static_cast<JobState>(list.Int(4))});
  }
}

absl::StatusOr<std::vector<EndedPart>> EndedParts(Database& db, HistoryCursor& cursor, int limit) {
  // Whole attempts: a page ends between two.
  struct Ended {
    std::string uid;
    EndedPart part;
  };
  std::vector<Ended> attempts;
  {
    SFT_ASSIGN_OR_RETURN(
        Statement list,
        db.Prepare(
            "SELECT a.ended_us, a.uid, j.project, j.owner, a.state, a.verdict FROM attempts "
            "a JOIN jobs j ON j.id = a.job_id WHERE a.ended_us > 0 AND (a.ended_us, a.uid) > "
            "(?, ?) ORDER BY a.ended_us, a.uid LIMIT ?"));
    list.Bind(cursor.time_us).Bind(cursor.key).Bind(limit);
    while (true) {
      SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
      if (!row) break;
      cursor = {list.Int(0), list.Text(1)};
      EndedPart part{list.Text(2), list.Text(3),
                     "",           static_cast<AttemptState>(list.Int(4)),
                     true,         VerdictFromJson(list.Text(5))};
      attempts.push_back({list.Text(1), std::move(part)});
    }
  }
  std::vector<EndedPart> parts;
  for (Ended& attempt : attempts) {
    SFT_ASSIGN_OR_RETURN(Statement nodes,
                         db.Prepare("SELECT node FROM attempt_nodes WHERE attempt_uid = ? ORDER BY "
                                    "node_rank"));
    nodes.Bind(attempt.uid);
    while (true) {
      SFT_ASSIGN_OR_RETURN(const bool row, nodes.Step());
      if (!row) break;
      attempt.part.node = nodes.Text(0);
      parts.push_back(attempt.part);
      attempt.part.first = false;
    }
  }
  return parts;
}

absl::StatusOr<std::vector<FirstPlacement>> FirstPlacements(Database& db, HistoryCursor& cursor,
                                                            int limit) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT a.created_us, a.uid, j.project, j.owner, a.created_us - j.created_us FROM "
                 "attempts a JOIN jobs j ON j.id = a.job_id WHERE a.number = 1 AND (a.created_us, "
                 "a.uid) > (?, ?) ORDER BY a.created_us, a.uid LIMIT ?"));
  list.Bind(cursor.time_us).Bind(cursor.key).Bind(limit);
  std::vector<FirstPlacement> placements;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return placements;
    cursor = {list.Int(0), list.Text(1)};
    placements.push_back({list.Text(2), list.Text(3), list.Int(4)});
  }
}

}  // namespace sft::server::store
