#include <fmt/format.h>

#include "common/spec/draft.h"

// Words of other tools that say in another way what a key of ours says.

namespace sft::spec {
namespace {

// A switch that gives another key a value.
struct Saying {
  std::string_view key;
  std::string_view target;
  std::string_view if_true;
  std::string_view if_false;  // empty: says nothing
};
constexpr Saying kSayings[] = {
    {"data.assistant_only_loss", "data.loss_on", "assistant", "all"},
    {"data.train_on_inputs", "data.loss_on", "all", "assistant"},
    {"model.full_finetuning", "training.mode", "full_finetune", ""},
    {"lora.target_linear", "lora.target_modules", "all-linear", ""},
};

void Take(const Saying& saying, Draft* draft) {
  if (draft->Overridden(saying.key)) draft->DropFromFile(saying.target);
  if (draft->Overridden(saying.target)) draft->DropFromFile(saying.key);
  if (draft->Faulty({saying.key, saying.target}) || !draft->Given(saying.key)) return;
  const std::string_view text = draft->Bool(saying.key) ? saying.if_true : saying.if_false;
  if (text.empty()) return;
  const Value value = ParseText(*FindField(saying.target), text).value();
  if (!draft->Has(saying.target)) draft->Derive(saying.target, value, saying.key);
  if (draft->Find(saying.target)->value == value) return;
  draft->AddProblem(saying.key, fmt::format("{} contradicts {}; leave one of them out",
                                            draft->Quote(saying.key), draft->Quote(saying.target)));
}

}  // namespace

void ResolveDialect(Draft* draft) {
  for (const Saying& saying : kSayings) Take(saying, draft);
}

}  // namespace sft::spec
