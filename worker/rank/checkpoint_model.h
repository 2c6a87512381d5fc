#pragma once

#include "worker/rank/launch_file.h"

// The model of a job that answers with a checkpoint of another job (RankLaunch::resume_dir). Once
// on each node, `sft-rank prepare` writes what that job had trained by then, an adapter or a full
// model, to <attempt dir>/checkpoint; all processes of the attempt answer with that.

namespace sft::rank {

// Nothing for any other job. Throws as engine::DeliverCheckpoint.
void WriteCheckpointModel(const Launch& launch);

// Gives the job what WriteCheckpointModel has written as its adapter or, of a full model, as its
// model.
void UseCheckpointModel(Launch& launch);

}  // namespace sft::rank
