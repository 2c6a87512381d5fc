#pragma once

namespace sft::rank {

// Makes SIGTERM and SIGINT set a flag instead of ending the process: a step is finished, so that no
// artifact is left half-written. Whoever cannot wait sends SIGKILL.
void CatchStopSignals();
bool StopSignalled();

}  // namespace sft::rank
