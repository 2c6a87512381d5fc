#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "common/spec/draft.h"

// training.loss: what a job that learns from preferences may ask for, and its own defaults.

namespace sft::spec {
namespace {

constexpr std::string_view kLoss = "training.loss", kBeta = "training.preference.beta",
                           kDpoLoss = "training.preference.dpo_loss",
                           kSmoothing = "training.preference.label_smoothing",
                           kSftWeight = "training.preference.sft_weight",
                           kGamma = "training.preference.simpo_gamma",
                           kLearningRate = "hyperparameters.learning_rate",
                           kLossOn = "data.loss_on", kLongRows = "data.on_long_rows";

// The losses that a key is for.
std::string_view LossesOf(std::string_view key) {
  if (key == kDpoLoss || key == kSmoothing) return "dpo";
  if (key == kSftWeight) return "dpo|simpo";
  if (key == kGamma) return "simpo";
  if (key.starts_with("training.preference.kto_")) return "kto";
  return "dpo|orpo|simpo|kto";
}

bool IsAmongWords(std::string_view words, std::string_view word) {
  for (const std::string_view each : SplitWords(words, '|')) {
    if (each == word) return true;
  }
  return false;
}

void CheckKeysOfLoss(const std::string& loss, Draft* draft) {
  for (const Field& field : PreferenceFields()) {
    const std::string_view losses = LossesOf(field.key);
    if (!draft->Given(field.key) || IsAmongWords(losses, loss)) continue;
    const std::string why = fmt::format("has no part in training.loss = \"{}\"", loss);
    if (draft->StrengthOf(field.key) == Strength::kEnvironment) {
      draft->AddWarning(field.key, why + ": the variable has no effect");
    } else {
      draft->AddProblem(field.key, fmt::format("{}; it is for {}: leave it out", why,
                                               fmt::join(SplitWords(losses, '|'), ", ")));
    }
  }
}

void CheckSmoothing(Draft* draft) {
  if (draft->Faulty({kDpoLoss, kSmoothing})) return;
  const bool robust = draft->Has(kDpoLoss) && draft->String(kDpoLoss) == "robust";
  const bool smooths = draft->Has(kSmoothing) && draft->Float(kSmoothing) > 0;
  if (smooths && !robust) {
    draft->AddProblem(kSmoothing,
                      "counts with dpo_loss = \"robust\" alone: set it, or leave this out");
  } else if (robust && !smooths) {
    draft->AddProblem(kDpoLoss,
                      "\"robust\" needs label_smoothing above 0; without it, it is sigmoid");
  }
}

// What changes log-probabilities that are to be compared, or tears answers that belong together.
void CheckTogether(const std::string& loss, Draft* draft) {
  const auto refuse = [&](std::string_view key, const std::string& why) {
    if (draft->Faulty({key})) return;
    draft->AddProblem(key, fmt::format("{} does not go with training.loss = \"{}\": {}",
                                       draft->Quote(key), loss, why));
  };
  if (draft->Bool("data.packing")) {
    refuse("data.packing", "both answers to a prompt are one row; leave it out");
  }
  constexpr std::string_view kDropout = "lora.dropout";
  if (draft->Has(kDropout) && draft->Float(kDropout) > 0) {
    refuse(kDropout, "answers are compared without noise; leave it out");
  }
  constexpr std::string_view kNoise = "hyperparameters.neftune_noise_alpha";
  if (draft->Has(kNoise) && draft->Float(kNoise) > 0) {
    refuse(kNoise, "answers are compared without noise; leave it out");
  }
  constexpr std::string_view kBalance = "hyperparameters.router_aux_loss_coef";
  if (draft->Has(kBalance) && draft->Float(kBalance) > 0) {
    refuse(kBalance, "it is added to the mean loss of a token; leave it out");
  }
  const std::string rule = draft->Has(kLongRows) ? draft->String(kLongRows) : "error";
  if (rule != "error" && rule != "skip" && rule != "truncate_left") {
    refuse(kLongRows,
           "answers stay whole, and only the start of the prompt may be cut; use "
           "\"truncate_left\", \"skip\" or \"error\"");
  }
  constexpr std::string_view kAnswers = "training.validation.predict_with_generate";
  if (draft->Has(kAnswers) && draft->Bool(kAnswers)) {
    refuse(kAnswers,
           "its validation rows are pairs of answers; leave it out, and grade the result "
           "with `sftctl evaluate`");
  }
  if (draft->Has(kLossOn) && draft->String(kLossOn) == "all" && loss != "orpo") {
    refuse(kLossOn, "only answers are compared; leave it out");
  }
}

}  // namespace

void ResolvePreference(Draft* draft) {
  if (draft->Faulty({kLoss})) return;
  const std::string loss = draft->Has(kLoss) ? draft->String(kLoss) : "sft";
  const bool prefers = loss != "sft";
  CheckKeysOfLoss(loss, draft);
  if (!prefers) return;
  const std::string from = fmt::format("{} = {}", kLoss, loss);
  const auto derive = [&](std::string_view key, Value value) {
    if (!draft->Has(key)) draft->Derive(key, std::move(value), from);
  };
  derive(kLearningRate, draft->String("training.mode") == "full_finetune" ? 1e-6 : 5e-6);
  CheckTogether(loss, draft);
  if (loss == "orpo") derive(kLossOn, std::string("all"));
  if (loss == "dpo") CheckSmoothing(draft);
  if (loss != "simpo") return;
  derive(kBeta, 2.0);
  derive(kGamma, draft->Float(kBeta) / 2);
}

}  // namespace sft::spec
