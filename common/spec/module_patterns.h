#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/spec/job_spec.h"
#include "common/spec/resolve.h"

namespace re2 {
class RE2;
}

namespace sft::spec {

class Draft;

// Numbers that some modules have in place of the adapter's own, as PEFT's rank_pattern and
// alpha_pattern give them: a pattern is a regular expression (RE2's syntax) of the whole module
// name or of its end behind a dot, and the first that matches counts.
class ModulePatterns {
 public:
  using Items = std::vector<std::pair<std::string, double>>;

  // INVALID_ARGUMENT names the pattern that is no regular expression.
  static absl::StatusOr<ModulePatterns> Make(const Items& items);
  ModulePatterns(ModulePatterns&&) noexcept;
  ModulePatterns& operator=(ModulePatterns&&) noexcept;
  ~ModulePatterns();

  std::optional<double> Find(std::string_view module) const;
  // The first pattern that counts for none of the modules; nothing where all do.
  std::optional<std::string> FindIdle(const std::vector<std::string>& modules) const;

 private:
  ModulePatterns();
  // The position of the pattern that counts for a module; patterns_.size(): none.
  size_t PositionOf(std::string_view module) const;

  struct Entry {
    std::string pattern;
    std::unique_ptr<re2::RE2> expression;
    double number = 0;
  };
  std::vector<Entry> patterns_;
};

// "PATTERN=NUMBER" as a job file has it; the last "=" separates. INVALID_ARGUMENT says what would
// be right.
absl::StatusOr<ModulePatterns::Items> ParseModulePatterns(const std::vector<std::string>& items);

// Rank and scale of each adapted linear, by its name at run time (plan::RuntimeModule).
class LoraSizes {
 public:
  // INVALID_ARGUMENT names the key and what is wrong with it, which a resolved job has not.
  static absl::StatusOr<LoraSizes> Make(const JobSpec::Lora& lora);

  int RankOf(std::string_view module) const;
  // alpha / r, or alpha / sqrt(r) with use_rslora.
  double ScaleOf(std::string_view module) const;
  // What is wrong with a pattern that counts for none of the adapted linears.
  std::optional<Problem> FindIdle(const std::vector<std::string>& adapted) const;

 private:
  LoraSizes(const JobSpec::Lora& lora, ModulePatterns ranks, ModulePatterns alphas);

  int r_;
  double alpha_;
  bool use_rslora_;
  ModulePatterns ranks_, alphas_;
};

// Refuses lora.rank_pattern and lora.alpha_pattern that cannot be understood.
void CheckLoraPatterns(Draft* draft);

}  // namespace sft::spec
