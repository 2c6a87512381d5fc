#include "worker/rank/checkpoint_model.h"

#include <fmt/format.h>

#include "common/io/file.h"
#include "worker/engine/train/delivery.h"

namespace sft::rank {
namespace {

bool AnswersWithCheckpoint(const Launch& launch) {
  return launch.spec.generates() && !launch.file.resume_dir.empty();
}

std::string FolderOf(const Launch& launch) { return launch.file.attempt_dir + "/checkpoint"; }

}  // namespace

void WriteCheckpointModel(const Launch& launch) {
  if (!AnswersWithCheckpoint(launch)) return;
  const engine::CheckpointDelivery made =
      engine::DeliverCheckpoint(launch.file.resume_dir,
                                {.target = FolderOf(launch),
                                 .model_dir = launch.file.model_dir,
                                 .model_name = launch.file.model_name},
                                launch.spec.data.chat_template);
  fmt::print("{} of step {} of checkpoint {}: {}\n", made.full_model ? "model" : "adapter",
             made.step, launch.file.resume_dir, FolderOf(launch));
}

void UseCheckpointModel(Launch& launch) {
  if (!AnswersWithCheckpoint(launch)) return;
  const std::string folder = FolderOf(launch);
  (io::Exists(folder + "/adapter_config.json") ? launch.file.adapter_dir : launch.file.model_dir) =
      folder;
}

}  // namespace sft::rank
