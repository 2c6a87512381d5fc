#include "worker/engine/train/checkpoint_loader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/json.h"
#include "worker/engine/base/error.h"
#include "worker/engine/train/stamp.h"

namespace sft::engine {
namespace {

std::string Pack(const Error& error) {
  const char* kind = dynamic_cast<const UserError*>(&error) != nullptr ? "user"
                     : dynamic_cast<const InfrastructureError*>(&error) != nullptr
                         ? "infrastructure"
                         : "internal";
  return DumpJson(nlohmann::json::array({kind, error.what(), error.code(), error.advice()}));
}

[[noreturn]] void ThrowPacked(const std::string& packed) {
  const auto parts = ParseJson(packed).get<std::vector<std::string>>();
  if (parts.at(0) == "user") throw UserError(parts[1], parts.at(2), parts.at(3));
  if (parts[0] == "infrastructure") throw InfrastructureError(parts[1], parts.at(2), parts.at(3));
  throw InternalError(parts[1], parts.at(2), parts.at(3));
}

}  // namespace

void CheckTogether(Communicator& comm, const std::function<void()>& check) {
  std::string packed;
  try {
    check();
  } catch (const Error& error) {
    packed = Pack(error);
  }
  const std::vector<int64_t> sizes = AllGatherInt64(comm, static_cast<int64_t>(packed.size()));
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  if (longest == 0) return;
  packed.resize(static_cast<size_t>(longest), ' ');
  const std::vector<std::string> all = AllGatherStrings(comm, packed);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (sizes[rank] > 0) ThrowPacked(all[rank]);
  }
}

CheckpointLoader::CheckpointLoader(Options options, const Stamp& now, const CheckpointPlace& place,
                                   Communicator& comm)
    : options_(std::move(options)) {
  CheckTogether(comm, [&] { Verify(now, place, comm); });
}

void CheckpointLoader::Verify(const Stamp& now, const CheckpointPlace& place,
                              const Communicator& comm) {
  manifest_ = ReadManifest(options_.dir);
  if (options_.step > 0 && manifest_.step != options_.step) {
    throw InfrastructureError(
        fmt::format("{} holds the states of step {} where those of step {} should be",
                    options_.dir.string(), manifest_.step, options_.step),
        "checkpoint_damaged", "Resume from another checkpoint (sftctl resume JOB --from STEP).");
  }
  CompareStamps(now);
  const size_t ranks = static_cast<size_t>(place.ranks_of_node(comm.world()));
  const size_t own = static_cast<size_t>(comm.rank() - place.first_rank);
  for (size_t i = own; i < manifest_.files.size(); i += ranks) {
    VerifyFile(options_.dir, manifest_.files[i]);
  }
}

void CheckpointLoader::CompareStamps(const Stamp& now) {
  std::vector<std::string> fixed;
  bool others = false;  // than the engine's
  for (StampDifference& difference : Compare(manifest_.stamp, now)) {
    others = others || !difference.engine;
    (difference.acceptable ? changes_ : fixed).push_back(std::move(difference.text));
  }
  const std::string which =
      fmt::format("the checkpoint {} is of another job: ", options_.dir.string());
  if (!fixed.empty()) {
    fixed.insert(fixed.end(), changes_.begin(), changes_.end());
    throw UserError(which + fmt::format("{}", fmt::join(fixed, "; ")), "checkpoint_mismatch",
                    "Its states do not fit this job: submit a new one, or resume with the model, "
                    "the base's precision and the adapters that the checkpoint was made with.");
  }
  if (others && options_.engine_alone) {
    throw UserError(which + fmt::format("{}", fmt::join(changes_, "; ")), "checkpoint_mismatch",
                    "Something that the job reads was changed while it ran: put it back, or go on "
                    "with what is there now (sftctl resume JOB --allow-changes).");
  }
  if (!changes_.empty() && !options_.changed) {
    throw UserError(which + fmt::format("{}", fmt::join(changes_, "; ")), "checkpoint_mismatch",
                    "Resume with what the checkpoint was made with, or allow the differences "
                    "(sftctl resume JOB --allow-changes).");
  }
}

std::vector<at::Tensor> CheckpointLoader::Restore(TrainingModel& model) const {
  const SavedState saved(options_.dir, manifest_);
  RestoreState(saved, manifest_, model);
  return BestWeights(saved, model);
}

}  // namespace sft::engine
