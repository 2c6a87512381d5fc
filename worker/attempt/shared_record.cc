#include "worker/attempt/shared_record.h"

#include <spdlog/spdlog.h>

namespace sft::worker {

SharedRecord::SharedRecord(AttemptRecord record, const AttemptContext& context)
    : context_(context) {
  const MutexLock lock(mutex_);
  data_.state = StateOf(record);
  data_.record = std::move(record);
}

AttemptRecord SharedRecord::record() const {
  const MutexLock lock(mutex_);
  return data_.record;
}

AttemptState SharedRecord::state() const {
  const MutexLock lock(mutex_);
  return data_.state;
}

Wish SharedRecord::wish() const {
  const MutexLock lock(mutex_);
  return data_.wish;
}

absl::Status SharedRecord::Save() {
  const MutexLock save_lock(save_mutex_);
  // On a full disk a restarted worker would look at the shim's files once more, nothing worse; only
  // a launch must not go on without it.
  const absl::Status saved = SaveRecord(record(), context_.dir);
  if (!saved.ok()) spdlog::warn("attempt {}: {}", context_.uid, Message(saved));
  return saved;
}

void SharedRecord::Enter(AttemptState state, const std::string& reason) {
  {
    const MutexLock lock(mutex_);
    if (data_.state == state && data_.reason == reason) return;
    data_.state = state;
    data_.reason = reason;
  }
  spdlog::info("attempt {}: {}{}{}", context_.uid, v1::AttemptStatus::State_Name(state),
               reason.empty() ? "" : ": ", reason);
  context_.services.on_change();
}

void SharedRecord::Conclude(const v1::Verdict& verdict) {
  {
    const MutexLock lock(mutex_);
    AttemptRecord& record = data_.record;
    record.verdict = verdict;
    if (record.ended_us == 0) record.ended_us = UnixMicros(context_.services.clock.Wall());
    data_.retrying.clear();
    data_.prepared.port.Release();
  }
  (void)Save();
  Enter(v1::AttemptStatus::FINISHING, verdict.message());
}

}  // namespace sft::worker
