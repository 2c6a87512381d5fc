#include <fmt/format.h>

#include <algorithm>

#include "common/spec/draft.h"

// Job kinds: which keys a job of a kind has, and what else it may not ask.

namespace sft::spec {
namespace {

constexpr std::string_view kKindKey = "job.kind", kAdapterKey = "job.adapter",
                           kSamplesKey = "generate.num_samples", kMetricsKey = "evaluate.metrics",
                           kPatternKey = "evaluate.pattern";
// Tables and keys that only one kind of job has.
constexpr std::string_view kOfTraining[] = {"training.", "hyperparameters.", "lora.",
                                            "quantization.", "checkpoint."};
constexpr std::string_view kOfGeneration[] = {"generate.", "evaluate."};
constexpr std::string_view kOfEvaluation[] = {"evaluate."};
// Keys of [data] that both kinds have; the others are about what is learnt from its rows.
constexpr std::string_view kDataOfBoth[] = {"data.topology.", "data.chat_template",
                                            "data.max_examples"};
// How rows of training are read, which held-out rows are too.
constexpr std::string_view kRowsOfData[] = {"data.columns", "data.roles", "data.on_bad_rows"};
// What a job without a file of prompts has no use for.
constexpr std::string_view kOfPrompts[] = {"job.data", "data.max_examples", "generate.num_samples"};

template <size_t N>
bool IsAmong(std::string_view key, const std::string_view (&starts)[N]) {
  return std::any_of(std::begin(starts), std::end(starts),
                     [&](std::string_view start) { return key.starts_with(start); });
}

// Variables are set for all jobs of a shell: they do not make this one wrong.
void RefuseKey(const Field& field, const std::string& why, Draft* draft) {
  if (draft->StrengthOf(field.key) == Strength::kEnvironment) {
    draft->AddWarning(field.key, fmt::format("{}: the variable has no effect", why));
  } else {
    draft->AddProblem(field.key, why + "; leave it out");
  }
}

// One process holds the model, for a time that somebody has thought of.
void CheckServing(Draft* draft) {
  if (!draft->Faulty({kGpuCountKey}) && draft->Has(kGpuCountKey) && draft->Int(kGpuCountKey) > 1) {
    draft->AddProblem(
        kGpuCountKey,
        fmt::format("{}: a job of kind = \"serve\" is one process; not supported yet: "
                    "several",
                    draft->Quote(kGpuCountKey)));
  }
  constexpr std::string_view kLimit = "scheduling.time_limit";
  const std::string limit = draft->Has(kLimit) ? draft->String(kLimit) : "";
  if (draft->Faulty({kLimit}) ||
      (!limit.empty() && limit.find_first_of("123456789") != limit.npos)) {
    return;
  }
  draft->AddProblem(kLimit,
                    "is missing: a job of kind = \"serve\" holds its GPU until it is cancelled or "
                    "this time is over, for example \"8h\"");
}

}  // namespace

bool IsOfKind(const Field& field, std::string_view kind) {
  if (kind == kServeKind && IsAmong(field.key, kOfPrompts)) return false;
  if (kind == kEvaluateKind) {
    if (field.key == kSamplesKey) return false;
    if (IsAmong(field.key, kRowsOfData)) return true;
  } else if (kind != kTrainingKind && IsAmong(field.key, kOfEvaluation)) {
    return false;
  }
  if (kind != kTrainingKind) {
    if (IsForeign(field) || IsAmong(field.key, kOfTraining)) return false;
    return !field.key.starts_with("data.") || IsAmong(field.key, kDataOfBoth);
  }
  return field.key != kAdapterKey && !IsAmong(field.key, kOfGeneration);
}

void ResolveKind(Draft* draft) {
  if (draft->Faulty({kKindKey})) return;
  const std::string kind = draft->Has(kKindKey) ? draft->String(kKindKey) : kTrainingKind;
  const bool generates = kind != kTrainingKind;
  for (const Field* field : Fields()) {
    if (!draft->Given(field->key) || IsOfKind(*field, kind)) continue;
    if (field->key == kAdapterKey) {
      draft->AddProblem(
          kAdapterKey,
          "is for jobs of kind = \"generate\", \"serve\" or \"evaluate\"; not supported yet: "
          "training that goes on from an adapter");
    } else {
      RefuseKey(*field,
                IsAmong(field->key, kOfEvaluation) ? "is for jobs of kind = \"evaluate\""
                : !generates                       ? "is for jobs of kind = \"generate\""
                : kind == kEvaluateKind && field->key == kSamplesKey
                    ? "a job of kind = \"evaluate\" grades one answer to each row"
                : IsAmong(field->key, kOfPrompts)
                    ? "a job of kind = \"serve\" has no file of prompts"
                    : fmt::format("a job of kind = \"{}\" trains nothing", kind),
                draft);
    }
  }
  if (!generates) return;
  if (kind == kEvaluateKind) return CheckGraders(draft, {kMetricsKey, kPatternKey});
  const bool same =
      !draft->Has("generate.temperature") || draft->Float("generate.temperature") == 0;
  if (draft->Has("generate.num_samples") && draft->Int("generate.num_samples") > 1 && same &&
      !draft->Faulty({"generate.temperature"})) {
    draft->AddProblem("generate.num_samples",
                      "with a temperature of 0 all answers to a prompt would be the same: set "
                      "generate.temperature, or leave it out");
  }
}

void CheckNodesOfKind(Draft* draft) {
  const std::string kind = draft->Has(kKindKey) ? draft->String(kKindKey) : kTrainingKind;
  if (kind == kTrainingKind || draft->Faulty({kNodesKey, kKindKey})) return;
  if (kind == kServeKind) return CheckServing(draft);
  if (draft->Has(kNodesKey) && draft->Int(kNodesKey) > 1) {
    draft->AddProblem(kNodesKey,
                      fmt::format("{}: a job of kind = \"{}\" runs on one node; not supported "
                                  "yet: several",
                                  draft->Quote(kNodesKey), kind));
  }
}

}  // namespace sft::spec
