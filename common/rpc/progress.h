#pragma once

#include "sft/v1/job.pb.h"

namespace sft::rpc {

// Takes a point of the training curve into the progress that is shown of a job: an evaluation's
// loss, or a step's figures with the time that is left at its pace. The worker does so for its
// reports, the server for what comes between them. A point of an earlier step changes nothing.
void Advance(const v1::Metric& point, v1::Progress& progress);

}  // namespace sft::rpc
