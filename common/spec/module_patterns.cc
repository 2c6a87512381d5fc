#include "common/spec/module_patterns.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "common/spec/draft.h"
#include "common/spec/fields.h"

namespace sft::spec {
namespace {

constexpr std::string_view kRanks = "lora.rank_pattern", kAlphas = "lora.alpha_pattern";
constexpr size_t kMostPatternBytes = 512;
constexpr int64_t kPatternMemory = 1 << 20;

// The number of an item within the limits of the key that it stands in for.
absl::Status CheckNumber(std::string_view key, std::string_view of, bool whole,
                         const ModulePatterns::Items& items) {
  const Field& field = *FindField(of);
  for (const auto& [pattern, number] : items) {
    const bool low = field.above_min ? number <= field.min : number < field.min;
    if (!low && number <= field.max && (!whole || number == std::floor(number))) continue;
    return InvalidArgument(fmt::format("{}: \"{}={}\" must give what {} may be: {}", key, pattern,
                                       number, of, Expectation(field)));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModulePatterns> PatternsOf(std::string_view key, std::string_view of, bool whole,
                                          const std::vector<std::string>& texts) {
  const absl::StatusOr<ModulePatterns::Items> items = ParseModulePatterns(texts);
  if (!items.ok()) return Annotate(items.status(), key);
  SFT_RETURN_IF_ERROR(CheckNumber(key, of, whole, *items));
  absl::StatusOr<ModulePatterns> patterns = ModulePatterns::Make(*items);
  return patterns.ok() ? std::move(patterns) : Annotate(patterns.status(), key);
}

}  // namespace

ModulePatterns::ModulePatterns() = default;
ModulePatterns::ModulePatterns(ModulePatterns&&) noexcept = default;
ModulePatterns& ModulePatterns::operator=(ModulePatterns&&) noexcept = default;
ModulePatterns::~ModulePatterns() = default;

absl::StatusOr<ModulePatterns> ModulePatterns::Make(const Items& items) {
  ModulePatterns made;
  re2::RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(kPatternMemory);
  for (const auto& [pattern, number] : items) {
    if (pattern.size() > kMostPatternBytes) {
      return InvalidArgument(fmt::format("a pattern is longer than {} bytes", kMostPatternBytes));
    }
    // As PEFT puts it together, so that a pattern with "|" in it means the same.
    auto expression = std::make_unique<re2::RE2>("(.*\\.)?(" + pattern + ")", options);
    if (!expression->ok()) {
      return InvalidArgument(
          fmt::format("\"{}\" is no regular expression: {} (RE2's syntax: no look-around, no "
                      "references to groups)",
                      pattern, expression->error()));
    }
    made.patterns_.push_back({pattern, std::move(expression), number});
  }
  return made;
}

size_t ModulePatterns::PositionOf(std::string_view module) const {
  const re2::StringPiece text(module.data(), module.size());
  size_t position = 0;
  while (position < patterns_.size() &&
         !re2::RE2::FullMatch(text, *patterns_[position].expression)) {
    ++position;
  }
  return position;
}

std::optional<double> ModulePatterns::Find(std::string_view module) const {
  const size_t position = PositionOf(module);
  if (position == patterns_.size()) return std::nullopt;
  return patterns_[position].number;
}

std::optional<std::string> ModulePatterns::FindIdle(const std::vector<std::string>& modules) const {
  std::set<size_t> counting;
  for (const std::string& module : modules) counting.insert(PositionOf(module));
  for (size_t i = 0; i < patterns_.size(); ++i) {
    if (!counting.contains(i)) return patterns_[i].pattern;
  }
  return std::nullopt;
}

absl::StatusOr<ModulePatterns::Items> ParseModulePatterns(const std::vector<std::string>& items) {
  ModulePatterns::Items parsed;
  for (const std::string& item : items) {
    const size_t equals = std::min(item.rfind('='), item.size());
    const std::string pattern = item.substr(0, equals),
                      text = item.substr(std::min(equals + 1, item.size()));
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool read = error == std::errc() && end == text.data() + text.size();
    if (pattern.empty() || text.empty() || !read || !std::isfinite(number)) {
      return InvalidArgument(
          fmt::format("\"{}\" is not PATTERN=NUMBER, such as \"q_proj=8\"", item));
    }
    const bool again = std::any_of(parsed.begin(), parsed.end(),
                                   [&](const auto& other) { return other.first == pattern; });
    if (again) {
      return InvalidArgument(fmt::format("\"{}\" is given for the second time", pattern));
    }
    parsed.emplace_back(pattern, number);
  }
  return parsed;
}

LoraSizes::LoraSizes(const JobSpec::Lora& lora, ModulePatterns ranks, ModulePatterns alphas)
    : r_(lora.r),
      alpha_(lora.alpha),
      use_rslora_(lora.use_rslora),
      ranks_(std::move(ranks)),
      alphas_(std::move(alphas)) {}

absl::StatusOr<LoraSizes> LoraSizes::Make(const JobSpec::Lora& lora) {
  SFT_ASSIGN_OR_RETURN(ModulePatterns ranks, PatternsOf(kRanks, "lora.r", true, lora.rank_pattern));
  SFT_ASSIGN_OR_RETURN(ModulePatterns alphas,
                       PatternsOf(kAlphas, "lora.alpha", false, lora.alpha_pattern));
  return LoraSizes(lora, std::move(ranks), std::move(alphas));
}

int LoraSizes::RankOf(std::string_view module) const {
  return static_cast<int>(ranks_.Find(module).value_or(r_));
}

double LoraSizes::ScaleOf(std::string_view module) const {
  const double rank = RankOf(module), alpha = alphas_.Find(module).value_or(alpha_);
  return alpha / (use_rslora_ ? std::sqrt(rank) : rank);
}

std::optional<Problem> LoraSizes::FindIdle(const std::vector<std::string>& adapted) const {
  for (const auto& [key, patterns] : {std::pair(kRanks, &ranks_), std::pair(kAlphas, &alphas_)}) {
    const std::optional<std::string> idle = patterns->FindIdle(adapted);
    if (!idle) continue;
    return Problem{
        std::string(key), 0,
        fmt::format("\"{}\" counts for no linear that gets an adapter: none has such a "
                    "name, or patterns before it match all that have; names look like {}",
                    *idle, adapted.empty() ? "q_proj" : adapted.front())};
  }
  return std::nullopt;
}

void CheckLoraPatterns(Draft* draft) {
  const auto check = [draft](std::string_view key, std::string_view of, bool whole) {
    if (draft->Faulty({key}) || !draft->Has(key)) return;
    const auto* items = std::get_if<std::vector<std::string>>(&draft->Find(key)->value);
    if (items == nullptr) return;
    const absl::StatusOr<ModulePatterns> made = PatternsOf(key, of, whole, *items);
    if (made.ok()) return;
    std::string message(Message(made.status()));
    message.erase(0, message.find(": ") + 2);  // the problem names its key
    draft->AddProblem(key, std::move(message));
  };
  check(kRanks, "lora.r", true);
  check(kAlphas, "lora.alpha", false);
}

}  // namespace sft::spec
