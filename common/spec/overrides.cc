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
  if (variable.starts_with(kUnslothPrefix)) {
    return "has no effect: it is a setting of Unsloth's own code, which is not used here; the "
           "engine's fast kernels are always on";
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

// Sets the keys of a switch that is on.
void ApplySwitch(const SwitchVariable& variable, const Override& override_, Draft* draft) {
  static constexpr Field kSwitch{.type = Type::kBool};
  const absl::StatusOr<Value> on = ParseText(kSwitch, override_.value);
  if (!on.ok()) {
    draft->AddProblemAt(variable.name, 0, std::string(Message(on.status())));
    return;
  }
  if (!std::get<bool>(*on)) return;
  for (const std::string_view pair : SplitWords(variable.keys, ' ')) {
    const size_t equals = pair.find('=');
    const Field* field = FindField(pair.substr(0, equals));
    draft->SetOverride(*field, ParseText(*field, pair.substr(equals + 1)).value(), override_);
  }
}

}  // namespace

void ApplyOverrides(const std::vector<Override>& overrides, Draft* draft) {
  int compared = 0;
  for (const Override& override_ : overrides) {
    const Field* field = TargetOf(override_, compared, draft);
    if (field == nullptr) continue;
    // An empty variable usually means that it is not set.
    const bool variable = override_.kind == OverrideKind::kEnvironment;
    if (variable && override_.value.empty()) continue;
    if (const SwitchVariable* on = variable ? FindSwitchVariable(override_.key) : nullptr) {
      ApplySwitch(*on, override_, draft);
      continue;
    }
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
    if (IsNoted(*field, Value(override_.value))) draft->MarkNoted(field->key);
  }
}

}  // namespace sft::spec
