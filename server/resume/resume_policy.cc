#include "server/resume/resume_policy.h"

#include <fmt/format.h>

namespace sft::server::sched {
namespace {

// A node that is alone in having a part and will not be waited for; empty: there is none.
std::string LostHolder(const CheckpointRecord& checkpoint,
                       const std::map<std::string, Holder>& nodes) {
  for (const CheckpointPart& part : checkpoint.parts) {
    if (part.place != CheckpointPlace::kNode) continue;
    const auto node = nodes.find(part.node);
    if (node == nodes.end() || node->second.given_up) return part.node;
  }
  return "";
}

ResumeChoice Take(const CheckpointRecord& checkpoint, ResumeChoice choice) {
  bool pinned = false;
  for (const CheckpointPart& part : checkpoint.parts) {
    pinned = pinned || part.place == CheckpointPlace::kNode;
    choice.needs_shared = choice.needs_shared || part.place == CheckpointPlace::kShared;
  }
  for (const CheckpointPart& part : checkpoint.parts) {
    if (pinned) choice.only_nodes.push_back(part.node);
  }
  choice.checkpoint = checkpoint;
  return choice;
}

}  // namespace

std::string Describe(const CheckpointRecord& checkpoint) {
  return fmt::format("step {} of attempt {}", checkpoint.step, checkpoint.attempt);
}

ResumeChoice ChooseResume(const std::vector<CheckpointRecord>& checkpoints,
                          const std::map<std::string, Holder>& nodes) {
  ResumeChoice choice;
  for (const CheckpointRecord& checkpoint : checkpoints) {
    if (!checkpoint.problem.empty()) {
      choice.notes.push_back(fmt::format("the checkpoint of {} is not used: {}",
                                         Describe(checkpoint), checkpoint.problem));
      continue;
    }
    if (const std::string lost = LostHolder(checkpoint, nodes); !lost.empty()) {
      choice.notes.push_back(fmt::format(
          "the checkpoint of {} is out of reach: it lies on {} alone", Describe(checkpoint), lost));
      continue;
    }
    return Take(checkpoint, std::move(choice));
  }
  return choice;
}

}  // namespace sft::server::sched
