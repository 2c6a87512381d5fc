#include "worker/rank/prompt_task.h"

#include <fmt/format.h>

#include <utility>

#include "common/io/file_stamp.h"
#include "worker/engine/base/error.h"
#include "worker/rank/answer_part.h"
#include "worker/rank/prompt_rows.h"

namespace sft::rank {

Prompts ReadPrompts(const Launch& launch) {
  const channel::RankLaunch& file = launch.file;
  Prompts prompts{.file = file.train_name.empty() ? file.train_file : file.train_name};
  if (!file.train_stamp.empty() && io::ContentStampOf(file.train_file) != file.train_stamp) {
    throw engine::UserError(prompts.file + " was replaced or written to since the job was placed",
                            "data_changed", "leave the file alone while a job reads it");
  }
  auto rows = data::ReadPromptRows(file.train_file, prompts.file, launch.spec.data.max_examples);
  if (!rows.ok()) {
    throw engine::UserError(fmt::format("{}, {}", prompts.file, Message(rows.status())),
                            "bad_prompt", "correct the row, or leave it out");
  }
  prompts.rows = *std::move(rows);
  return prompts;
}

PromptTask::PromptTask(const Launch& launch)
    : options_(OptionsFor(launch)), prompts_(ReadPrompts(launch)) {
  CheckOptions(options_);
}

int64_t PromptTask::lines() const {
  return static_cast<int64_t>(prompts_.rows.size()) * options_.samples;
}

std::string PromptTask::Identity(int ranks) const { return RunOf(options_, prompts_, ranks); }

std::string PromptTask::PlaceOf(int64_t number) const {
  return rank::PlaceOf(prompts_.file,
                       prompts_.rows[static_cast<size_t>(number / options_.samples)]);
}

void PromptTask::Open(int64_t first, int64_t last, const Device& device) {
  answerer_ = std::make_unique<RowAnswerer>(options_, prompts_, first, last, device);
}

bool PromptTask::Step(const Take& take) {
  return answerer_->Step([&](int64_t number, const RowAnswer& answer) {
    take(LineOf(prompts_, options_.samples, number, answer));
  });
}

std::string PromptTask::Deliver(const std::string& all_lines, const std::string& folder) {
  ThrowIfError(CopyFile(all_lines, folder + "/answers.jsonl"));
  return "answers";
}

}  // namespace sft::rank
