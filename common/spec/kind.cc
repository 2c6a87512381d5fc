#include <fmt/format.h>

#include <algorithm>

#include "common/spec/draft.h"

// Job kinds: which keys a job of a kind has, and what else it may not ask.

namespace sft::spec {
namespace {

constexpr std::string_view kKindKey = "job.kind", kAdapterKey = "job.adapter";
// Tables and keys that only one kind of job has.
constexpr std::string_view kOfTraining[] = {"training.", "hyperparameters.", "lora.",
                                            "quantization.", "checkpoint."};
constexpr std::string_view kOfGeneration[] = {"generate."};
// Of [data], whose other keys are about what is learnt from its rows.
constexpr std::string_view kDataOfBoth[] = {"data.topology.", "data.chat_template",
                                            "data.max_examples"};

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

}  // namespace

bool IsOfKind(const Field& field, std::string_view kind) {
  if (kind == kGenerateKind) {
    if (IsForeign(field) || IsAmong(field.key, kOfTraining)) return false;
    return !field.key.starts_with("data.") || IsAmong(field.key, kDataOfBoth);
  }
  return field.key != kAdapterKey && !IsAmong(field.key, kOfGeneration);
}

void ResolveKind(Draft* draft) {
  if (draft->Faulty({kKindKey})) return;
  const std::string kind = draft->Has(kKindKey) ? draft->String(kKindKey) : kTrainingKind;
  const bool generates = kind == kGenerateKind;
  for (const Field* field : Fields()) {
    if (!draft->Given(field->key) || IsOfKind(*field, kind)) continue;
    if (field->key == kAdapterKey) {
      draft->AddProblem(kAdapterKey,
                        "is for jobs of kind = \"generate\"; not supported yet: training that goes "
                        "on from an adapter");
    } else {
      RefuseKey(*field,
                generates ? "a job of kind = \"generate\" trains nothing"
                          : "is for jobs of kind = \"generate\"",
                draft);
    }
  }
  if (!generates) return;
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
  const bool generates = draft->Has(kKindKey) && draft->String(kKindKey) == kGenerateKind;
  if (!generates || draft->Faulty({kNodesKey, kKindKey})) return;
  if (draft->Has(kNodesKey) && draft->Int(kNodesKey) > 1) {
    draft->AddProblem(
        kNodesKey, fmt::format("{}: a job of kind = \"generate\" runs on one node; not supported "
                               "yet: several",
                               draft->Quote(kNodesKey)));
  }
}

}  // namespace sft::spec
