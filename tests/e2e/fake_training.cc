#include "tests/e2e/fake_training.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/io/file.h"

namespace sft {
namespace {

constexpr std::string_view kMode = "train";
constexpr int kMostRanks = 64;

class FakeTraining {
 public:
  FakeTraining(const channel::RankLaunch& launch, int rank, const std::string& mode,
               const std::function<void(channel::EventBody)>& write)
      : launch_(launch), rank_(rank), write_(write) {
    std::istringstream words(mode.substr(kMode.size()));
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      options_[word.substr(0, equals)] = equals == word.npos ? "" : word.substr(equals + 1);
    }
    steps_ = Number("steps", 20);
  }

  int Run() {
    if (!launch_.resume_dir.empty() && !Resume()) {
      write_(channel::FatalEvent{"infrastructure", "checkpoint_damaged",
                                 launch_.resume_dir + " cannot be read", "use an earlier one"});
      return channel::kExitInfrastructure;
    }
    const int64_t save = Number("save", 0);
    while (step_ < steps_) {
      if (step_ + 1 == steps_ && options_.contains("until")) {
        if (const int code = WaitFor(options_["until"]); code != channel::kExitOk) return code;
      }
      // At its pace until the file that `fast` names is there.
      const bool fast = options_.contains("fast") && io::Exists(options_["fast"]);
      if (const int code = Pause(fast ? 0 : Number("pace", 20)); code != channel::kExitOk) {
        return code;
      }
      MakeStep();
      const bool asked = asked_ && launch_.world_size == 1;
      if (asked || (save > 0 && step_ % save == 0)) {
        if (const int code = Save(asked ? "asked" : "steps"); code != channel::kExitOk) return code;
        asked_ = false;
      }
      if (const int code = Misbehave(); code != channel::kExitOk) return code;
    }
    return channel::kExitOk;
  }

 private:
  int64_t Number(const std::string& key, int64_t otherwise) const {
    const auto found = options_.find(key);
    return found == options_.end() ? otherwise : std::atoll(found->second.c_str());
  }

  // Obeys commands for so long.
  int Pause(int64_t milliseconds) {
    const MonoTime end = Clock::Real().Mono() + std::chrono::milliseconds(milliseconds);
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::Real().Mono());
      pollfd entry{STDIN_FILENO, POLLIN, 0};
      if (left.count() <= 0 || poll(&entry, 1, static_cast<int>(left.count())) <= 0) return 0;
      char buffer[4096];
      const ssize_t got = read(STDIN_FILENO, buffer, sizeof(buffer));
      if (got <= 0) return channel::kExitInternal;
      const std::string text(buffer, static_cast<size_t>(got));
      if (text.find("\"checkpoint\"") != text.npos) asked_ = true;
      if (text.find("\"stop\"") != text.npos) return channel::kExitStopped;
    }
  }

  int WaitFor(const std::string& path) {
    while (!io::Exists(path)) {
      if (const int code = Pause(20); code != channel::kExitOk) return code;
      if (asked_ && launch_.world_size == 1 && step_ > 0) {
        asked_ = false;
        if (const int code = Save("asked"); code != channel::kExitOk) return code;
      }
    }
    return channel::kExitOk;
  }

  void MakeStep() {
    ++step_;
    state_ = state_ * 6364136223846793005ULL + static_cast<uint64_t>(step_);
    channel::StepEvent event;
    event.step = step_;
    event.total_steps = steps_;
    event.loss = 1.0 + static_cast<double>(state_ >> 40) / (1 << 24);
    event.tokens = 64;
    event.tokens_per_second = 640;
    event.seconds = 0.1;
    event.rank_loss = event.loss + 0.01 * rank_;
    event.gpu_memory_bytes = 1'000'000 * (rank_ + 1);
    write_(event);
  }

  std::string PartName(int rank) const {
    return fmt::format("rank-{}-of-{}.json", rank, launch_.world_size);
  }
  // This rank's, else one of another number of ranks: each holds the same.
  std::string PartToRead(const std::string& dir) const {
    std::string path = dir + "/" + PartName(rank_);
    for (int world = 1; world <= kMostRanks && !io::Exists(path); ++world) {
      if (world == launch_.world_size) continue;
      path = fmt::format("{}/rank-0-of-{}.json", dir, world);
    }
    return path;
  }

  int Save(const std::string& reason) {
    const std::string dir = fmt::format("{}/step-{}", launch_.checkpoint_dir, step_);
    const std::string partial = dir + ".partial";
    const nlohmann::json part = {
        {"step", step_}, {"state", state_}, {"ballast", std::string(Number("bytes", 1000), 'b')}};
    // The first rank renames the folder as soon as it sees the part: its entry may still be synced.
    const bool written =
        io::MakeDirs(partial).ok() &&
        (io::WriteFileAtomic(partial + "/" + PartName(rank_), DumpJson(part)).ok() ||
         io::Exists(dir + "/" + PartName(rank_)));
    if (!written) return channel::kExitInfrastructure;
    if (rank_ != launch_.first_rank) {
      while (io::Exists(partial)) {
        if (const int code = Pause(5); code != channel::kExitOk) return code;
      }
      return channel::kExitOk;
    }
    int64_t bytes = 0;
    for (int k = 0; k < launch_.local_ranks; ++k) {
      const std::string path = partial + "/" + PartName(launch_.first_rank + k);
      while (!io::Exists(path)) {
        if (const int code = Pause(5); code != channel::kExitOk) return code;
      }
      bytes += io::FileSize(path).value_or(0);
    }
    const std::string manifest = fmt::format("{{\"step\":{}}}", step_);
    if (rank_ == 0 && !io::WriteFileAtomic(partial + "/manifest.json", manifest).ok()) {
      return channel::kExitInfrastructure;
    }
    // Another attempt may have left one of the same step.
    if (!io::RemoveAll(dir).ok() || !io::RenameDurably(partial, dir).ok()) {
      return channel::kExitInfrastructure;
    }
    write_(channel::CheckpointEvent{
        .step = step_, .path = dir, .bytes = bytes, .reason = reason, .seconds = 0.01});
    return channel::kExitOk;
  }

  bool Resume() {
    const std::string& dir = launch_.resume_dir;
    if (!io::Exists(dir + "/manifest.json")) return false;
    const auto part = ParseJson(io::ReadFile(PartToRead(dir)).value_or(""));
    if (!part.is_object()) return false;
    step_ = part["step"].get<int64_t>();
    state_ = part["state"].get<uint64_t>();
    write_(channel::ResumedEvent{step_, dir, {}});
    return true;
  }

  int Misbehave() {
    if (rank_ != launch_.world_size - 1) return channel::kExitOk;
    const auto due = [&](const char* key) { return Number(key, -1) == step_; };
    if (!due("kill") && !due("crash") && !due("nan") && !due("hang")) return channel::kExitOk;
    if (options_.contains("once")) {
      if (io::Exists(options_["once"])) return channel::kExitOk;
      if (!io::WriteFileAtomic(options_["once"], "").ok()) return channel::kExitInfrastructure;
    }
    if (due("kill")) raise(SIGKILL);
    if (due("crash")) abort();
    if (due("hang")) {
      while (true) {
        if (const int code = Pause(1000); code != channel::kExitOk) return code;
      }
    }
    write_(channel::FatalEvent{"user", "nan_loss", fmt::format("the loss is nan at step {}", step_),
                               "lower the learning rate"});
    return channel::kExitUserError;
  }

  const channel::RankLaunch& launch_;
  const int rank_;
  const std::function<void(channel::EventBody)>& write_;
  std::map<std::string, std::string> options_;
  int64_t steps_ = 0;
  int64_t step_ = 0;
  uint64_t state_ = 1;
  bool asked_ = false;
};

}  // namespace

bool IsFakeTraining(const std::string& mode) { return mode.starts_with(kMode); }

int RunFakeTraining(const channel::RankLaunch& launch, int rank, const std::string& mode,
                    const std::function<void(channel::EventBody)>& write) {
  return FakeTraining(launch, rank, mode, write).Run();
}

}  // namespace sft
