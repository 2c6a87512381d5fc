#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "worker/channel/flight_record.h"
#include "worker/channel/launch.h"
#include "worker/engine/export/logit_difference.h"
#include "worker/engine/export/merge.h"
#include "worker/engine/export/vllm_adapter.h"
#include "worker/rank/command_input.h"
#include "worker/rank/device.h"
#include "worker/rank/event_log.h"
#include "worker/rank/launch_file.h"
#include "worker/rank/memory_limit.h"

namespace sft::rank {

// `sft-rank prepare` of an export: checks that base and adapter belong together and tokenises the
// rows on which they are compared. Throws engine errors.
void PrepareExport(const Launch& launch, const MemoryLimit& limit, EventLog& events,
                   const Clock& clock);

// The one process of a job that makes another form of what a job has trained. It works in a folder
// beside the result's, which is there whole or not at all.
class ExportJob {
 public:
  struct Context {
    const Launch& launch;
    int rank;
    EventLog& events;
    CommandInput& commands;
    Clock& clock;
    MonoTime process_start;
  };
  explicit ExportJob(const Context& context);
  ~ExportJob();

  // Returns kExitOk, or kExitStopped when a command or a signal ended it. Throws engine errors.
  channel::ExitCode Run();

 private:
  // The adapter merged into one form of the base.
  struct Merged {
    std::string base;  // "original", "nf4", ...
    std::filesystem::path folder;
    engine::MergeReport report;
    engine::LogitDifference difference;
  };

  // Thrown where a stop ends the work.
  struct WasStopped {};

  // Tells those who look for a hang that the work goes on; throws WasStopped.
  void GoOn();
  void TellReady(const Device& device);
  engine::GeneratorOptions AsTrained(const Device& device) const;
  void Work(const Device& device);
  void MergeAll(const Device& device);
  Merged MergeInto(const std::string& base, const Device& device);
  void ChooseBetter();
  // Writes the file from what was merged, or from the model itself, which it then takes the place
  // of.
  void WriteGguf();
  std::string GgufFile() const;
  // Writes the adapter as vLLM reads that of experts.
  void WriteForVllm();
  nlohmann::ordered_json Result() const;
  void Deliver();

  Context context_;
  std::optional<channel::FlightRecorder> flight_;
  const std::filesystem::path work_;
  std::unique_ptr<engine::QuantFormat> trained_on_;  // null: the original base
  engine::ComparedRows rows_;
  std::vector<at::Tensor> as_trained_;  // logits
  std::vector<Merged> merged_;          // the chosen one first
  std::filesystem::path made_;          // the folder to deliver, in work_
  engine::VllmAdapter for_vllm_;
};

}  // namespace sft::rank
