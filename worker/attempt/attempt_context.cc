#include "worker/attempt/attempt_context.h"

#include <spdlog/spdlog.h>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/spec/job_json.h"
#include "worker/attempt/fencing.h"

namespace sft::worker {
namespace {

std::optional<RankUser> UserOf(const AttemptRecord& record, const NodeSetup& setup) {
  if (!record.launched) return setup.rank_user;
  if (record.rank_uid == 0) return std::nullopt;
  if (setup.rank_user && setup.rank_user->uid == record.rank_uid) return setup.rank_user;
  return RankUserOf(record.rank_uid, record.rank_gid);
}

Nanos FencingOf(const absl::StatusOr<spec::JobSpec>& job) {
  return FencingLimit(job.ok() ? job->compute : spec::JobSpec::Compute());
}

}  // namespace

AttemptContext::AttemptContext(const AttemptRecord& record, const AttemptServices& with)
    : services(with),
      uid(record.uid),
      job_id(record.dispatch.job_id()),
      epoch(record.epoch),
      dir(with.setup.AttemptDir(record.uid)),
      job(spec::FromJson(ParseJson(record.dispatch.resolved_json()))),
      fencing(FencingOf(job)),
      rank_user(UserOf(record, with.setup)) {}

void AttemptContext::Warn(const std::string& message) const {
  spdlog::warn("attempt {}: {}", uid, message);
  WriteNote(channel::WarningEvent{message, ""});
}

void AttemptContext::Tell(const std::string& kind, const std::string& message) const {
  spdlog::info("attempt {}: {}", uid, message);
  WriteNote(channel::WarningEvent{message, kind});
}

void AttemptContext::WriteNote(const channel::WarningEvent& note) const {
  const RankRights rights(rank_user);
  const double now = static_cast<double>(UnixMicros(services.clock.Wall())) / 1e6;
  absl::StatusOr<io::AppendFile> file = io::AppendFile::Open(dir + "/node.events");
  const absl::Status written =
      file.ok() ? file->Append(channel::ToLine(channel::Event{now, note})) : file.status();
  if (!written.ok()) spdlog::warn("attempt {}: {}", uid, Message(written));
}

}  // namespace sft::worker
