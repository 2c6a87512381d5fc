#include "server/database/migration_lists.h"

namespace sft::server {
namespace {

// As migrations.cc, whose end this goes on from.
constexpr Migration kMigrationsFrom23[] = {{23, R"sql(
-- What moved a waiting job in its line: the last of its changes. 0: of places, in no line; of
-- times, not known.
CREATE TABLE wait_changes (
  job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
  sequence INTEGER NOT NULL,
  time_us INTEGER NOT NULL,
  place_before INTEGER NOT NULL,
  place INTEGER NOT NULL,
  start_before_us INTEGER NOT NULL,
  start_us INTEGER NOT NULL,
  promised_before_us INTEGER NOT NULL,
  promised_us INTEGER NOT NULL,
  cause TEXT NOT NULL,
  PRIMARY KEY (job_id, sequence)
) STRICT, WITHOUT ROWID;
)sql"}};

}  // namespace

std::span<const Migration> MigrationsFrom23() { return kMigrationsFrom23; }

}  // namespace sft::server
