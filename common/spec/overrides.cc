#include <fmt/format.h>

#include "common/base/status.h"
#include "common/spec/draft.h"

namespace sft::spec {
namespace {

// Suggestions are looked up only for the first few names, since each is compared with all.
constexpr int kMostCompared = 10;

std::string WhyNoEffect(const std::string& variable, int& compared) {
  for (const ForeignVariable& foreign : ForeignVariables()) {
    if (foreign.name == variable) return fmt::format("has no effect: {}", foreign.instead);
  }
  const std::string nearest = ++compared > kMostCompared ? "" : NearestVariable(variable);
  return nearest.empty()
             ? "names no key of a job, so it has no effect"
             : fmt::format("names no key of a job, so it has no effect; did you mean {}?", nearest);
}

const Field* TargetOf(const Override& override_, int& compared, Draft* draft) {
  if (override_.kind == OverrideKind::kEnvironment) {
    const Field* field = FindEnvField(override_.key, override_.value);
    if (field == nullptr) draft->AddWarning(override_.key, WhyNoEffect(override_.key, compared));
    return field;
  }
  const Field* field = FindField(override_.key);
  if (field == nullptr) {
    draft->AddUnknown(override_.key, 0, /*is_table=*/false,
                      fmt::format("unknown key (given by {})", override_.origin));
  }
  return field;
}

}  // namespace

void ApplyOverrides(const std::vector<Override>& overrides, Draft* draft) {
  int compared = 0;
  for (const Override& override_ : overrides) {
    const Field* field = TargetOf(override_, compared, draft);
    if (field == nullptr) continue;
    // An empty variable usually means that it is not set.
    if (override_.kind == OverrideKind::kEnvironment && override_.value.empty()) continue;
    if (LeavesOut(*field, Value(override_.value))) {
      draft->DropFromFile(field->key);
      continue;
    }
    absl::StatusOr<Value> value = ParseText(*field, override_.value);
    if (!value.ok()) {
      draft->AddProblemAt(
          field->key, 0,
          fmt::format("{} (given by {})", Message(value.status()), override_.origin));
      continue;
    }
    draft->SetOverride(*field, *std::move(value), override_);
  }
}

}  // namespace sft::spec
