#include "worker/rank/event_log.h"

#include <utility>

#include "common/base/duration.h"
#include "worker/engine/base/error.h"

namespace sft::rank {
namespace {

void Check(const absl::Status& status) {
  if (status.ok()) return;
  const bool full = status.code() == absl::StatusCode::kResourceExhausted;
  throw engine::InfrastructureError(std::string(Message(status)), full ? "disk_full" : "disk_error",
                                    full ? "Free space on the worker's data folder." : "");
}

}  // namespace

EventLog EventLog::Open(const std::string& path, const Clock& clock) {
  auto file = io::AppendFile::Open(path);
  Check(file.status());
  return EventLog(*std::move(file), clock);
}

void EventLog::Write(channel::EventBody body) {
  const double seconds = SecondsOf(std::chrono::microseconds(UnixMicros(clock_.Wall())));
  Check(file_.Append(channel::ToLine({.time = seconds, .body = std::move(body)})));
}

void EventLog::Sync() { Check(file_.Sync()); }

}  // namespace sft::rank
