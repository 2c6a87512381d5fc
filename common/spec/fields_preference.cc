#include "common/spec/fields.h"

// [training.preference]

namespace sft::spec {
namespace {

constexpr Field kPreferenceTable[] = {
    {.key = "training.preference.beta",
     .type = Type::kFloat,
     .def = "0.1",
     .doc =
         "How strongly a margin between the answers counts; against a reference also how far the "
         "model may move from it (less with a larger beta). With loss = \"simpo\" the default is "
         "2, as in its paper: means over tokens are compared, which TRL's 0.1 hardly trains.",
     .min = 0,
     .max = 1000,
     .above_min = true,
     .aliases = "rl_beta pref_beta dpo_beta",
     .since = 2},
    {.key = "training.preference.dpo_loss",
     .type = Type::kChoice,
     .def = "sigmoid",
     .doc =
         "With loss = \"dpo\": what becomes of a pair's margin m against the reference. sigmoid: "
         "-log sigmoid(beta m). robust: the same for pairs of which label_smoothing have their "
         "answers swapped. hinge: max(0, 1 - beta m). ipo: (m - 1 / (2 beta))^2 with a margin of "
         "means over tokens. sigmoid_norm: sigmoid with that margin.",
     .choices = "sigmoid|robust|hinge|ipo|sigmoid_norm",
     .aliases = "pref_loss",
     .since = 2},
    {.key = "training.preference.label_smoothing",
     .type = Type::kFloat,
     .def = "0",
     .doc =
         "With dpo_loss = \"robust\": the share of pairs in which the rejected answer is taken to "
         "be the better one; below 0.5.",
     .min = 0,
     .max = 0.49,
     .since = 2},
    {.key = "training.preference.sft_weight",
     .type = Type::kFloat,
     .def = "0",
     .doc =
         "Adds this times the cross entropy of the chosen answers, per token, for when their "
         "probability falls too far. With dpo and simpo; TRL's CPO trainer, which has SimPO, adds "
         "1 unless told otherwise (cpo_alpha), and that is no longer SimPO. orpo always adds 1.",
     .min = 0,
     .max = 1000,
     .aliases = "rpo_alpha cpo_alpha pref_ftx",
     .since = 2},
    {.key = "training.preference.simpo_gamma",
     .type = Type::kFloat,
     .def = "0.5",
     .doc = "With loss = \"simpo\": the margin that a pair should have, beta times the difference "
            "of mean log-probabilities; the default is half of beta.",
     .min = 0,
     .max = 1000,
     .aliases = "simpo_gamma",
     .since = 2},
    {.key = "training.preference.kto_desirable_weight",
     .type = Type::kFloat,
     .def = "1",
     .doc =
         "With loss = \"kto\": the weight of good answers. The number of good answers times their "
         "weight should be 1 to 1.33 times that of bad ones.",
     .min = 0,
     .max = 1000,
     .aliases = "kto_desirable_weight kto_chosen_weight",
     .since = 2},
    {.key = "training.preference.kto_undesirable_weight",
     .type = Type::kFloat,
     .def = "1",
     .doc = "With loss = \"kto\": the weight of bad answers.",
     .min = 0,
     .max = 1000,
     .aliases = "kto_undesirable_weight kto_rejected_weight",
     .since = 2},
};

}  // namespace

std::span<const Field> PreferenceFields() { return kPreferenceTable; }

}  // namespace sft::spec
