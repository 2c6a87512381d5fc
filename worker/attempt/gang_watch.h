#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/spec/job_spec.h"
#include "worker/attempt/hang.h"
#include "worker/attempt/straggler.h"
#include "worker/channel/launch.h"

namespace sft::worker {

// How long a job's ranks may stand still.
HangLimits LimitsOf(const spec::JobSpec::Compute& compute);

// Looks at the ranks of one attempt on this node from time to time. One thread.
class GangWatch {
 public:
  struct Options {
    GangView gang;
    std::string attempt_dir;
    std::map<int, std::string> places;  // of ranks on GPUs: "GPU 3"
  };
  // `clock` is borrowed.
  GangWatch(Options options, Clock& clock);

  struct News {
    std::optional<v1::Verdict> hang;
    std::vector<std::string> warnings;
  };
  // Nothing new when it is not yet time for another look. A hang must be seen twice: after a pause
  // of the whole machine every rank looks as if it had stood still.
  News Look(const channel::ShimStatus& status);

  // Every rank of the attempt, the ended ones too, as it is now or was last.
  std::vector<RankLook> Ranks(const channel::ShimStatus& status);
  // What they did last, and that they parted ways, for the verdict of an attempt that failed.
  void AddTraces(const channel::ShimStatus& status, v1::Verdict& verdict);

 private:
  const Options options_;
  Clock& clock_;
  const Nanos interval_;
  std::optional<MonoTime> looked_at_;
  std::optional<MonoTime> suspected_at_;
  StragglerWatch stragglers_;
  std::map<int, uint64_t> cpu_ticks_;
};

}  // namespace sft::worker
