#include "worker/base/retries.h"

#include <fmt/format.h>

#include "common/base/duration.h"

namespace sft::worker {
namespace {

std::string Times(int count) {
  if (count == 1) return "once";
  if (count == 2) return "twice";
  return fmt::format("{} times", count);
}

}  // namespace

void Retries::Failed(MonoTime now, bool away) {
  if (!away && failures_ > 0) spent_ += now - last_;
  if (!away) ++tries_;
  ++failures_;
  last_ = now;
  due_ = now + backoff_.Next();
}

void Retries::Succeeded() {
  if (failures_ == 0) return;
  backoff_.Reset();
  failures_ = tries_ = 0;
  spent_ = Nanos(0);
  due_ = MonoTime{};
}

std::string Retries::Text(std::string_view what, const absl::Status& why, MonoTime now) const {
  return fmt::format("{} failed {}: {}; tries again in {} s", what, Times(failures_), Message(why),
                     std::chrono::ceil<std::chrono::seconds>(Wait(now)).count());
}

std::string Retries::Counts() const {
  return fmt::format("{} in {}", Times(failures_),
                     DurationText(std::chrono::duration_cast<std::chrono::seconds>(spent_)));
}

}  // namespace sft::worker
