#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/spec/job_spec.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/train/observer.h"
#include "worker/engine/train/training_model.h"

namespace sft::engine {

// Target of the artifact and the files to copy into it.
struct DeliveryOptions {
  std::filesystem::path target;     // the artifact's directory, replaced whole
  std::filesystem::path model_dir;  // tokenizer, template and config.json are copied from it
  std::string model_name;           // the base as the job named it
};

// Reports of a delivery: the comparison, and the files with their hashes.
struct DeliveryResult {
  ConsistencyReport consistency;
  ArtifactReport artifact;  // on rank 0
};

// Gathers the trained weights, writes them on rank 0 (a PEFT adapter, or a full model in the type
// of the computation), reads the files back, and compares: the weights of all ranks, and the
// weights with the files. A collective. Throws InfrastructureError when the disk fails; says by
// `consistent` = false, without throwing, that the comparison failed.
DeliveryResult Deliver(const TrainingModel& model, const spec::JobSpec& spec,
                       const DeliveryOptions& options, Communicator& comm);

// What DeliverCheckpoint wrote.
struct CheckpointDelivery {
  bool full_model = false;  // written was a full model; else an adapter
  int64_t step = 0;         // of the checkpoint
};

// Writes what a training had made at a checkpoint as Deliver writes its result, on one process and
// without that training: the checkpoint says what was trained and how (its stamp), the base is
// `options.model_dir`. Verifies all files first. `chat_template` as data.chat_template. Throws
// UserError "checkpoint_mismatch" for another base, and as ReadManifest and VerifyFile.
CheckpointDelivery DeliverCheckpoint(const std::filesystem::path& checkpoint,
                                     const DeliveryOptions& options,
                                     const std::string& chat_template);

}  // namespace sft::engine
