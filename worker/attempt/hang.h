#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "sft/v1/job.pb.h"
#include "worker/channel/flight_record.h"

// Whether the ranks of a node still get on, and who holds them up, from what can be seen from
// outside: their flight records and the states of their processes. Pure.

namespace sft::worker {

// One rank of this node at one look.
struct RankLook {
  int rank = 0;
  std::string place;  // "GPU 3"; empty for a rank on the CPU
  char state = 0;     // of its process, as in /proc; 0: it is gone
  bool busy = false;  // it used a CPU since the look before
  std::optional<channel::FlightRecord> flight;
};

// How long ranks may stand still.
struct HangLimits {
  Nanos step = std::chrono::minutes(10);
  // Before the first step is done, and while results are written or validation runs.
  Nanos other = std::chrono::minutes(30);
};

// The gang that the ranks belong to.
struct GangView {
  std::string node;
  int world = 1;
  bool gpu = false;
  HangLimits limits;
  int stages = 1;  // of a pipeline, each of as many consecutive ranks
};

// Nothing while some rank of the node made progress within its limit. Else the verdict: who did not
// enter the collective that the others wait in, who is stopped, or that none came out of it;
// evidence is each rank's last operation. A node whose ranks all wait for ranks of other nodes says
// so later than the one that is to blame. Ranks without a record are not judged by themselves.
std::optional<v1::Verdict> JudgeHang(const std::vector<RankLook>& ranks, const GangView& gang,
                                     MonoTime now);

// The ranks disagree about what their n-th collective is: the verdict names the minority.
std::optional<v1::Verdict> FindDesync(const std::vector<RankLook>& ranks, const GangView& gang);

// "rank 3 on GPU 3: step 12 of 40, waits in all-reduce #17 (4096 bytes, group world) for 12.0 s;
// its process sleeps"
std::string DescribeRank(const RankLook& look, MonoTime now);

}  // namespace sft::worker
