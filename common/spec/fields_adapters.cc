#include "common/spec/fields.h"

// [lora] [quantization]

namespace sft::spec {
namespace {

constexpr Field kAdapterTable[] = {
    {.key = "lora.r",
     .type = Type::kInt,
     .def = "16",
     .doc = "Rank of the adapters. Examples often have 8 and 16 for r and alpha; the defaults here "
            "are 16 and 32, which keep the scale and give adapters room to learn more, for steps "
            "that take hardly longer.",
     .min = 1,
     .max = 8192,
     .aliases = "tuning.lora.r lora_r r"},
    {.key = "lora.alpha",
     .type = Type::kFloat,
     .def = "32",
     .doc = "Adapters are scaled by alpha / r.",
     .min = 0,
     .max = 1e6,
     .above_min = true,
     .aliases = "tuning.lora.alpha lora_alpha lora.lora_alpha"},
    {.key = "lora.dropout",
     .type = Type::kFloat,
     .def = "0",
     .doc = "Dropout on the adapters' input while training.",
     .min = 0,
     .max = 0.999,
     .aliases = "tuning.lora.dropout lora_dropout lora.lora_dropout"},
    {.key = "lora.target_modules",
     .type = Type::kList,
     .def = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
     .doc = "Which linears get an adapter: suffixes of module names, or \"all-linear\", which the "
            "default is for a model whose linears have other names (GPT-2, Phi-3).",
     .aliases = "tuning.lora.target_modules target_modules lora_target_modules"},
    {.key = "lora.bias",
     .type = Type::kChoice,
     .def = "none",
     .doc = "Which biases of the model are trained beside the adapters: none, all, or those of the "
            "adapted linears; never those of experts, as PEFT has it.",
     .choices = "none|all|lora_only",
     .aliases = "tuning.lora.bias lora_bias bias"},
    {.key = "lora.use_rslora",
     .type = Type::kBool,
     .def = "false",
     .doc = "Scales adapters by alpha / sqrt(r) instead.",
     .aliases = "tuning.lora.use_rslora use_rslora"},
    {.key = "lora.use_dora",
     .type = Type::kBool,
     .def = "false",
     .doc = "DoRA: each output of an adapted linear also has a trained magnitude, over the norm of "
            "its row of W + s B A. Steps take longer; not with training.matmul = \"fp8\".",
     .aliases = "tuning.lora.use_dora use_dora peft_use_dora",
     .since = 2},
    {.key = "lora.init_lora_weights",
     .type = Type::kChoice,
     .def = "true",
     .doc = "First values of the adapters, as in PEFT: with true A is uniform by Kaiming, with "
            "\"gaussian\" normal with a deviation of 1 / r; B is 0.",
     .choices = "true|gaussian|false|orthogonal|pissa|olora|loftq|eva|corda|lora_ga|mica",
     .supported = "true|gaussian",
     .refusal = "not supported yet: adapters whose first product is not 0, or that start from the "
                "weights or the data; set true or \"gaussian\"",
     .aliases = "init_lora_weights tuning.lora.init_lora_weights",
     .since = 2},
    {.key = "lora.loraplus_lr_ratio",
     .type = Type::kFloat,
     .def = "1",
     .doc = "LoRA+: B learns at this multiple of learning_rate, and as in PEFT so does everything "
            "trained that has one dimension (biases, norms, magnitudes). Usual are 2 to 16.",
     .min = 0,
     .max = 1e6,
     .above_min = true,
     .aliases = "tuning.lora.loraplus_lr_ratio loraplus_lr_ratio train.loraplus_lr_ratio",
     .since = 2},
    {.key = "lora.rank_pattern",
     .type = Type::kList,
     .def = "",
     .doc =
         "Ranks that some linears have in place of r, as in PEFT: \"q_proj=8\", "
         "\"layers.[0-3].mlp.down_proj=32\". Before the last = stands a regular expression "
         "(RE2) of the module's name, or of its end behind a dot; the first that matches counts.",
     .max = 64,
     .may_be_empty = true,
     .aliases = "tuning.lora.rank_pattern rank_pattern",
     .since = 2},
    {.key = "lora.alpha_pattern",
     .type = Type::kList,
     .def = "",
     .doc = "Alphas that some linears have in place of alpha, written as rank_pattern.",
     .max = 64,
     .may_be_empty = true,
     .aliases = "tuning.lora.alpha_pattern alpha_pattern",
     .since = 2},
    {.key = "lora.modules_to_save",
     .type = Type::kList,
     .def = "",
     .doc = "Embedding, head and norms that are trained whole beside the adapters and delivered in "
            "the adapter's file: ends of module names, as in PEFT (\"embed_tokens\", \"lm_head\", "
            "\"norm\").",
     .may_be_empty = true,
     .aliases =
         "tuning.lora.modules_to_save modules_to_save lora_modules_to_save additional_target",
     .since = 2},
    {.key = "lora.ensure_weight_tying",
     .type = Type::kBool,
     .def = "false",
     .doc = "PEFT's word: a model whose head is its embedding keeps them one where modules_to_save "
            "names either. Such a job needs true.",
     .aliases = "tuning.lora.ensure_weight_tying ensure_weight_tying",
     .since = 2},

    {.key = "quantization.bits",
     .type = Type::kInt,
     .derived = "what load_in_4bit or load_in_8bit asks for; 4 with use_qlora; else 0",
     .doc = "Bits of a frozen base weight: 4 (NF4, most memory saved), 8 (INT8 with a scale per "
            "row, closest to the original), or 0: not quantised.",
     .min = 0,
     .max = 16},
    {.key = "quantization.type",
     .type = Type::kChoice,
     .def = "nf4",
     .doc = "Format of the 4-bit weights.",
     .choices = "nf4|fp4",
     .supported = "nf4",
     .refusal = "not supported yet: 4-bit formats other than nf4",
     .aliases = "bnb_4bit_quant_type quantization.bnb_4bit_quant_type "
                "quantization_config.bnb_4bit_quant_type"},
    {.key = "quantization.double_quant",
     .type = Type::kBool,
     .def = "true",
     .doc = "Quantises the scales of the 4-bit blocks too (saves 0.37 bits per weight).",
     .aliases = "bnb_4bit_use_double_quant quantization.bnb_4bit_use_double_quant "
                "quantization_config.bnb_4bit_use_double_quant"},
};

}  // namespace

std::span<const Field> AdapterFields() { return kAdapterTable; }

}  // namespace sft::spec
