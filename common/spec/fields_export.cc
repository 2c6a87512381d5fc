#include "common/spec/fields.h"

// [export]

namespace sft::spec {
namespace {

constexpr Field kExportTable[] = {
    {.key = "export.form",
     .type = Type::kChoice,
     .def = "merged",
     .doc = "merged: a model with the adapter in its weights, as transformers reads it. gguf: one "
            "file for llama.cpp, with a Modelfile for Ollama; without job.adapter, of job.model "
            "alone. vllm: the adapter of a mixture of experts with one linear for each expert, "
            "as vLLM reads it; without the other keys of this table.",
     .choices = "merged|gguf|vllm",
     .since = 2},
    {.key = "export.type",
     .type = Type::kChoice,
     .def = "bf16",
     .doc = "The type of the weights. f32 keeps all that a weak adapter adds; q8_0 (8 bits with a "
            "scale for 32 weights) is for form = \"gguf\".",
     .choices = "bf16|f32|q8_0",
     .since = 2},
    {.key = "export.base",
     .type = Type::kChoice,
     .def = "better",
     .doc =
         "Into which weights of the base the adapter is merged: the original ones, those that it "
         "was trained on (trained_on), or of the two those whose logits are nearer to base and "
         "adapter as trained, which is measured.",
     .choices = "better|original|trained",
     .since = 2},
    {.key = "export.trained_on",
     .type = Type::kChoice,
     .def = "original",
     .doc = "What the base was quantised to when the adapter was trained: nf4 (with double "
            "quantisation), nf4_single (without), int8, or original: not at all. `sftctl export` "
            "has it from the job.",
     .choices = "original|nf4|nf4_single|int8",
     .since = 2},
    {.key = "export.compare_tokens",
     .type = Type::kInt,
     .def = "2048",
     .doc = "Tokens of job.data on which the result is compared with base and adapter as trained.",
     .min = 1,
     .max = 8192,
     .since = 2},
};

}  // namespace

std::span<const Field> ExportFields() { return kExportTable; }

}  // namespace sft::spec
