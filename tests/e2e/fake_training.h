#pragma once

#include <functional>
#include <string>

#include "worker/channel/event.h"
#include "worker/channel/launch.h"

namespace sft {

// A pretended training that saves and resumes, as "fake:train KEY=VALUE ...":
//
//   steps=N      steps in all (20)
//   pace=MS      a step takes so long (20)
//   save=N       a checkpoint every N steps (0: none but on the command "checkpoint")
//   bytes=N      size of each rank's part of a checkpoint (1000)
//   kill=N       the last rank is killed by signal 9 after step N ...
//   crash=N      ... or aborts ...
//   nan=N        ... or ends with a fault of the user's ...
//   hang=N       ... or stops making steps
//   once=PATH    ... unless the file PATH exists, which it makes then
//   until=PATH   the last step waits for the file PATH
//
// The loss of a step depends on all steps before it, so that a curve shows whether a resume went on
// with the right state. Ranks of one node meet at each checkpoint; only a job of one rank obeys the
// command "checkpoint", as these ranks have no collective to agree by.
bool IsFakeTraining(const std::string& mode);
// Writes events through `write`; the exit code, 0 when all steps are made.
int RunFakeTraining(const channel::RankLaunch& launch, int rank, const std::string& mode,
                    const std::function<void(channel::EventBody)>& write);

}  // namespace sft
