#include <fmt/format.h>

#include <algorithm>

#include "common/spec/draft.h"

// Job kinds: which keys a job of a kind has, and what else it may not ask.

namespace sft::spec {
namespace {

constexpr std::string_view kKindKey = "job.kind", kAdapterKey = "job.adapter",
                           kSamplesKey = "generate.num_samples", kMetricsKey = "evaluate.metrics",
                           kPatternKey = "evaluate.pattern", kBeamsKey = "generate.num_beams",
                           kTemperatureKey = "generate.temperature";
// Tables and keys that only one kind of job has.
constexpr std::string_view kOfTraining[] = {"training.", "hyperparameters.", "lora.",
                                            "quantization.", "checkpoint."};
constexpr std::string_view kOfGeneration[] = {"generate.", "evaluate."};
constexpr std::string_view kOfEvaluation[] = {"evaluate."}, kOfExport[] = {"export."};
// Keys of [data] that all kinds have; the others are about what is learnt from its rows.
constexpr std::string_view kDataOfAll[] = {"data.topology.", "data.chat_template", "data.template_",
                                           "data.max_examples"};
// How rows of training are read, which held-out rows are too.
constexpr std::string_view kRowsOfData[] = {"data.columns", "data.roles", "data.on_bad_rows",
                                            "data.alpaca_prompt"};
// Those that an export reads its rows by.
constexpr std::string_view kDataOfExport[] = {
    "data.topology.",    "data.chat_template", "data.template_",     "data.max_examples",
    "data.columns",      "data.roles",         "data.loss_on",       "data.on_bad_rows",
    "data.on_long_rows", "data.alpaca_prompt", "data.text_documents"};
// A search with beams knows its tokens at its end only.
constexpr std::string_view kOfSearch[] = {kBeamsKey, "generate.length_penalty",
                                          "generate.early_stopping"};
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

void CheckOneProcess(Draft* draft) {
  if (draft->Faulty({kGpuCountKey}) || !draft->Has(kGpuCountKey) || draft->Int(kGpuCountKey) <= 1) {
    return;
  }
  draft->AddProblem(kGpuCountKey,
                    draft->Quote(kGpuCountKey) +
                        ": a job of kind = \"export\" is one process; not supported yet: several");
}

// The model is held for a time that somebody has thought of.
void CheckServing(Draft* draft) {
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

// What the keys of an export ask of each other.
void CheckExport(Draft* draft) {
  const bool adapter = draft->Has(kAdapterKey) && !draft->String(kAdapterKey).empty();
  const auto is = [&](std::string_view key, std::string_view value) {
    return !draft->Faulty({key}) && draft->Has(key) && draft->String(key) == value;
  };
  const bool gguf = is("export.form", "gguf"), vllm = is("export.form", "vllm");
  if (!adapter && !gguf && !draft->Faulty({kAdapterKey})) {
    draft->AddProblem(kAdapterKey,
                      fmt::format("is missing: {}, for example \"job-2f8c0k1m3n\"",
                                  vllm ? "an adapter is what is written"
                                       : "a merged model is made of a base and an adapter"));
  }
  for (const Field& field : ExportFields()) {
    if (!vllm || field.key == "export.form" || !draft->Given(field.key)) continue;
    draft->AddProblem(field.key,
                      "is of merged weights, and form = \"vllm\" has the adapter's factors as they "
                      "are: leave it out");
  }
  if (!gguf && is("export.type", "q8_0")) {
    draft->AddProblem(
        "export.type",
        "q8_0 is a type of GGUF: set export.form = \"gguf\", or the type bf16 or f32");
  }
  if (!is("export.base", "trained") || !is("export.trained_on", "original")) return;
  draft->AddWarning(
      "export.base",
      "the base was not quantised (export.trained_on), so the original one is the one "
      "that was trained on");
}

int64_t BeamsOf(const Draft& draft) { return draft.Has(kBeamsKey) ? draft.Int(kBeamsKey) : 1; }

bool IsDrawn(const Draft& draft) {
  return draft.Has(kTemperatureKey) && draft.Float(kTemperatureKey) > 0;
}

void CheckSearch(Draft* draft) {
  if (draft->Faulty({kBeamsKey, kTemperatureKey})) return;
  if (BeamsOf(*draft) > 1 && IsDrawn(*draft)) {
    draft->AddProblem(kBeamsKey, fmt::format("{} draws tokens, a search with beams takes the "
                                             "likeliest answer: leave one of the two out",
                                             draft->Quote(kTemperatureKey)));
  }
}

// Several answers to a prompt have to differ.
void CheckSamples(Draft* draft) {
  if (draft->Faulty({kSamplesKey, kBeamsKey, kTemperatureKey}) || !draft->Has(kSamplesKey)) return;
  const int64_t samples = draft->Int(kSamplesKey), beams = BeamsOf(*draft);
  if (samples <= beams || IsDrawn(*draft)) return;
  draft->AddProblem(
      kSamplesKey,
      beams > 1 ? fmt::format("a search with {} beams finds {} answers to a prompt: lower it, or "
                              "raise {}",
                              beams, beams, kBeamsKey)
                : "with a temperature of 0 all answers to a prompt would be the same: set "
                  "generate.temperature, or leave it out");
}

}  // namespace

bool IsOfKind(const Field& field, std::string_view kind) {
  if (kind == kServeKind && (IsAmong(field.key, kOfPrompts) || IsAmong(field.key, kOfSearch))) {
    return false;
  }
  if (kind == kEvaluateKind) {
    if (field.key == kSamplesKey) return false;
    if (IsAmong(field.key, kRowsOfData)) return true;
  } else if (kind != kTrainingKind && IsAmong(field.key, kOfEvaluation)) {
    return false;
  }
  if (kind != kTrainingKind && kind != kExportKind) {
    if (IsForeign(field) || IsAmong(field.key, kOfTraining) || IsAmong(field.key, kOfExport)) {
      return false;
    }
    return !field.key.starts_with("data.") || IsAmong(field.key, kDataOfAll);
  }
  if (kind == kExportKind) {
    if (IsForeign(field) || IsAmong(field.key, kOfTraining) || IsAmong(field.key, kOfGeneration)) {
      return false;
    }
    return !field.key.starts_with("data.") || IsAmong(field.key, kDataOfExport);
  }
  return !IsAmong(field.key, kOfGeneration) && !IsAmong(field.key, kOfExport);
}

void ResolveKind(Draft* draft) {
  if (draft->Faulty({kKindKey})) return;
  const std::string kind = draft->Has(kKindKey) ? draft->String(kKindKey) : kTrainingKind;
  const bool trains = kind == kTrainingKind;
  for (const Field* field : Fields()) {
    if (!draft->Given(field->key) || IsOfKind(*field, kind)) continue;
    RefuseKey(*field,
              IsAmong(field->key, kOfExport)       ? "is for jobs of kind = \"export\""
              : IsAmong(field->key, kOfEvaluation) ? "is for jobs of kind = \"evaluate\""
              : kind == kEvaluateKind && field->key == kSamplesKey
                  ? "a job of kind = \"evaluate\" grades one answer to each row"
              : trains || (kind == kExportKind && IsAmong(field->key, kOfGeneration))
                  ? "is for jobs of kind = \"generate\""
              : IsAmong(field->key, kOfSearch)
                  ? "a job of kind = \"serve\" gives its answers token by token, a search with "
                    "beams at its end: ask beams of a job of kind = \"generate\""
              : IsAmong(field->key, kOfPrompts)
                  ? "a job of kind = \"serve\" has no file of prompts"
                  : fmt::format("a job of kind = \"{}\" trains nothing", kind),
              draft);
  }
  if (kind == kExportKind) return CheckExport(draft);
  if (trains) return;
  CheckSearch(draft);
  if (kind == kEvaluateKind) {
    CheckGraderPrograms("evaluate.grader", draft);
    return CheckGraders(draft, {kMetricsKey, kPatternKey});
  }
  CheckSamples(draft);
}

void CheckNodesOfKind(Draft* draft) {
  const std::string kind = draft->Has(kKindKey) ? draft->String(kKindKey) : kTrainingKind;
  if (kind == kTrainingKind || draft->Faulty({kNodesKey, kKindKey})) return;
  if (kind == kServeKind) return CheckServing(draft);
  if (kind == kExportKind) return CheckOneProcess(draft);
}

}  // namespace sft::spec
