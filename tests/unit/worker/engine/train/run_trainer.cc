#include "tests/unit/worker/engine/train/run_trainer.h"

#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "tests/unit/worker/engine/model/tiny_model.h"

namespace sft::engine {

std::shared_ptr<const Dataset> CountingRows(int count) {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<uint8_t>> loss;
  for (int row = 0; row < count; ++row) {
    tokens.emplace_back();
    for (int i = 0; i < 8 + row % 5; ++i) tokens.back().push_back((row * 7 + i) % kTinyVocabulary);
    loss.emplace_back(tokens.back().size(), 1);
    loss.back()[0] = 0;
  }
  return Dataset::FromDocuments(tokens, loss);
}

TrainerOptions TinyRun(const std::filesystem::path& model_dir, spec::Mode mode, int world) {
  TrainerOptions options;
  spec::JobSpec& job = options.spec;
  job.training.mode = mode;
  job.lora.r = 4;
  job.compute.gpu_count = world;
  job.compute.gpus_per_node = world;
  job.hyperparameters.per_device_batch = 2;
  job.hyperparameters.global_batch = 2 * world;
  job.hyperparameters.max_steps = 6;
  job.hyperparameters.learning_rate = 5e-3;
  options.model_dir = model_dir;
  options.model_name = "tiny";
  options.train = CountingRows(12);
  options.output_dir = model_dir.parent_path() / "output";
  return options;
}

std::vector<RecordingObserver> RunTrainer(
    const TrainerOptions& options, int world,
    const std::function<void(std::vector<RecordingObserver>&)>& prepare, Clock& clock) {
  std::vector<RecordingObserver> observers(world);
  if (prepare) prepare(observers);
  const auto run = [&](Communicator& comm) {
    Trainer trainer(options, comm, observers[comm.rank()], clock);
    trainer.Run();
  };
  if (world == 1) {
    run(*MakeLocalCommunicator(at::kCPU));
  } else {
    RunRanks(world, run);
  }
  return observers;
}

}  // namespace sft::engine
