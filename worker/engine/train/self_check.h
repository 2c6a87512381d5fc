#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "common/spec/job_spec.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/data/step_plan.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/train/training_model.h"

// Checks that a run makes on its own model, each with a few short forwards. All ranks call them
// alike: they are collectives where the weights are sharded.

namespace sft::engine {

// Documents of a few tokens to compare logits on.
using ProbeDocuments = std::vector<std::vector<int32_t>>;

// The beginnings of the first two rows; of the only row, twice.
ProbeDocuments MakeProbe(const Dataset& rows);

// Two documents as long as attention by cuDNN needs them, which takes micro-batches with such
// documents on a GPU; short ones are FlashAttention-2's. Nothing where no row is that long.
std::optional<ProbeDocuments> MakeLongProbe(const Dataset& rows);

// Logits of some tokens of a micro-batch: TrainingModel::Logits, or what a test has in its place.
using LogitsOf =
    std::function<at::Tensor(const MicroBatch& batch, const std::vector<int64_t>& tokens)>;

// Packed documents must not see each other: compares tokens all over the second. Throws
// InternalError when the second document's logits change with the tokens of the first (not by a
// bit), or differ from those it has alone by more than products of another size round, and
// UserError when they are not finite. Returns that difference, as a part of the largest logit.
// `has_experts`: an expert's products have the rows of all documents, whose number changes with any
// token; so the second's logits may change by what products of another size round.
double CheckPacking(const LogitsOf& logits, const ProbeDocuments& probe, bool has_experts = false);

// Throws UserError when an adapter that the job asked for has learned nothing, naming the layers
// whose factor B is still zero.
void CheckAdaptersTrained(const TrainingModel& model);

// Reads the artifact of the job back into the model, in place of what it trained, and returns the
// largest difference of its logits on the probe, as a part of the largest logit. `dir`: the
// adapter's or the model's folder; rank 0 reads it. Throws InternalError when the logits differ by
// more than rounding to the files' type explains.
double CheckDelivered(TrainingModel& model, const spec::JobSpec& spec,
                      const std::filesystem::path& dir, const ProbeDocuments& probe,
                      Communicator& comm);

}  // namespace sft::engine
