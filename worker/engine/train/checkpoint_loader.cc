#include "worker/engine/train/checkpoint_loader.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/duration.h"
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
  for (const std::string& thrown : AllGatherStrings(comm, packed)) {
    if (!thrown.empty()) ThrowPacked(thrown);
  }
}

CheckpointLoader::CheckpointLoader(Options options, const Stamp& now, const CheckpointPlace& place,
                                   Communicator& comm, Clock& clock)
    : options_(std::move(options)), device_(comm.device()), clock_(clock) {
  CheckTogether(comm, [&] {
    const MonoTime begin = clock_.Mono();
    Verify(now, place, comm);
    verify_seconds_ = SecondsOf(clock_.Mono() - begin);
  });
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
  std::vector<CheckpointFile> files;
  for (size_t i = own; i < manifest_.files.size(); i += ranks) files.push_back(manifest_.files[i]);
  at::parallel_for(0, static_cast<int64_t>(files.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) VerifyFile(options_.dir, files[static_cast<size_t>(i)]);
  });
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

std::vector<at::Tensor> CheckpointLoader::Restore(TrainingModel& model) {
  const MonoTime begin = clock_.Mono();
  SavedState saved(options_.dir, manifest_, device_);
  RestoreState(saved, manifest_, model);
  std::vector<at::Tensor> best = BestWeights(saved, model);
  restore_seconds_ = SecondsOf(clock_.Mono() - begin);
  return best;
}

}  // namespace sft::engine
