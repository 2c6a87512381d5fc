#include "worker/daemon/confinement_probe.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "common/base/plain_text.h"
#include "worker/base/child_process.h"
#include "worker/grading/sandbox.h"

namespace sft::worker {

absl::Status ProbeConfinement(const std::string& program, const std::optional<RankUser>& user) {
  constexpr std::chrono::seconds kProbeConfinementDeadline{20};
  constexpr size_t kMostBytes = 500;
  const absl::StatusOr<ChildResult> asked =
      RunChild({program, "probe-confinement"}, {}, kProbeConfinementDeadline, user);
  if (!asked.ok()) return asked.status();
  if (asked->ok()) return absl::OkStatus();
  const std::string said = asked->output.substr(0, asked->output.find('\n'));
  return FailedPrecondition(said.empty() ? fmt::format("{} probe-confinement failed", program)
                                         : Plain(said, kMostBytes));
}

int ConfinementProbeMain() {
  const absl::Status able = grading::CheckConfinement();
  if (able.ok()) return 0;
  std::printf("%s\n", std::string(Message(able)).c_str());
  return 1;
}

}  // namespace sft::worker
