#include "worker/rank/model_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "common/base/duration.h"
#include "common/base/json.h"
#include "common/base/version.h"
#include "common/data/front_matter.h"
#include "common/io/file.h"
#include "common/io/model_folder.h"
#include "common/io/paths.h"
#include "common/spec/job_json.h"

namespace sft::rank {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kTrainingHeading = "## Training\n";
constexpr std::string_view kQuantized = "q8_0";
constexpr size_t kCurvePoints = 20;
// Ranks that vLLM holds adapters of; smaller ones are padded.
constexpr int kServedRanks[] = {8, 16, 32, 64, 128, 256, 320, 512};

// A text as YAML has it between quotes.
std::string Yaml(const std::string& text) { return DumpJson(ordered_json(text)); }

// The licence is the base's or not known, never a guess.
std::string LicenceLines(const std::string& base, const std::string& base_card) {
  const absl::StatusOr<ordered_json> matter = data::ParseFrontMatter(base_card);
  std::string lines;
  const auto copy = [&](const char* key) {
    if (!matter.ok() || !matter->is_object() || !matter->contains(key)) return;
    const ordered_json& value = (*matter)[key];
    if (value.is_string()) lines += fmt::format("{}: {}\n", key, Yaml(value.get<std::string>()));
  };
  for (const char* key : {"license", "license_name", "license_link"}) copy(key);
  if (!lines.empty()) return lines;
  lines = "license: other\nlicense_name: \"that of the base model\"\n";
  const std::string id = HubIdOf(base);
  if (!id.empty()) {
    lines += fmt::format("license_link: {}\n", Yaml("https://huggingface.co/" + id));
  }
  return lines;
}

std::string FrontMatter(const std::string& base, const std::string& base_card,
                        const std::string& relation, const std::string& library,
                        const std::vector<std::string>& tags) {
  std::string text = "---\n";
  if (const std::string id = HubIdOf(base); !id.empty()) {
    text += fmt::format("base_model: {}\nbase_model_relation: {}\n", Yaml(id), relation);
  }
  text += fmt::format("library_name: {}\n", library);
  text += LicenceLines(base, base_card);
  text += "pipeline_tag: text-generation\ntags:\n";
  for (const std::string& tag : tags) text += "- " + tag + "\n";
  return text + "---\n\n";
}

// At most kCurvePoints of a curve, evenly, the last among them.
std::string CurveTable(const std::vector<std::pair<int64_t, double>>& curve, const char* what) {
  if (curve.empty()) return "";
  std::string text = fmt::format("| step | {} |\n|---|---|\n", what);
  const size_t shown = std::min(kCurvePoints, curve.size());
  for (size_t i = 0; i < shown; ++i) {
    const size_t at = shown == 1 ? curve.size() - 1 : i * (curve.size() - 1) / (shown - 1);
    text += fmt::format("| {} | {:.4f} |\n", curve[at].first, curve[at].second);
  }
  return text + "\n";
}

// Keys of the job that are not at their defaults.
std::string SettingsTable(const spec::JobSpec& spec) {
  const nlohmann::json now = spec::ToJson(spec).flatten();
  const nlohmann::json defaults = spec::ToJson(spec::JobSpec()).flatten();
  constexpr std::string_view kTables[] = {"/training/", "/hyperparameters/", "/lora/",
                                          "/quantization/", "/data/"};
  std::string text = "| key | value |\n|---|---|\n";
  for (const auto& [path, value] : now.items()) {
    const bool shown = std::any_of(std::begin(kTables), std::end(kTables),
                                   [&](std::string_view table) { return path.starts_with(table); });
    if (!shown || path.starts_with("/data/chat_template") || path.starts_with("/data/topology")) {
      continue;
    }
    if (defaults.contains(path) && defaults[path] == value) continue;
    std::string key = path.substr(1), shown_value = DumpJson(ordered_json(value));
    std::replace(key.begin(), key.end(), '/', '.');
    for (size_t at = 0; (at = shown_value.find('|', at)) != std::string::npos; at += 2) {
      shown_value.insert(at, "\\");
    }
    text += fmt::format("| `{}` | {} |\n", key, shown_value);
  }
  return text + "\n";
}

std::string MethodOf(const spec::JobSpec& spec) {
  if (spec.full_finetune()) return "full fine-tuning";
  const std::string kind = spec.lora.use_dora ? "DoRA" : "LoRA";
  if (!spec.qlora()) return kind;
  return fmt::format("{} on a base in {}", kind, spec.quantization.bits == 8 ? "INT8" : "NF4");
}

std::string TrainingSection(const TrainingFacts& facts, const spec::JobSpec& spec) {
  std::string text(kTrainingHeading);
  text += fmt::format("\nJob {} of sft {}: {} on {} x {}, {}.\n\n", facts.job, facts.engine,
                      MethodOf(spec), facts.ranks, facts.device,
                      DurationText(std::chrono::seconds(static_cast<int64_t>(facts.seconds))));
  text += fmt::format("- base: `{}`\n", facts.base);
  if (!spec.job.adapter.empty()) text += fmt::format("- started from: `{}`\n", spec.job.adapter);
  for (const CardData& file : facts.data) {
    text += fmt::format("- data: `{}`{}\n", file.name,
                        file.sha256.empty() ? "" : fmt::format(", sha256 `{}`", file.sha256));
  }
  text += fmt::format("- {} rows used, {} left out; {} tokens, {} of them with loss\n", facts.rows,
                      facts.skipped, facts.tokens, facts.loss_tokens);
  text += fmt::format("- tokenizer and template: sha256 `{}`\n", facts.template_digest);
  if (!facts.losses.empty()) {
    text += fmt::format("- last loss {:.4f}", facts.losses.back().second);
    if (!facts.validations.empty()) {
      text += fmt::format(", validation {:.4f}", facts.validations.back().second);
    }
    text += "\n";
  }
  if (facts.checks) {
    text += fmt::format(
        "- checked by the job: logits of these files, read back, differ from the trained model's "
        "by at most {:.2g} of the largest; those of a packed document from those it has alone by "
        "at most {:.2g}\n",
        facts.checks->delivered, facts.checks->packing);
  }
  text += "\n" + SettingsTable(spec);
  if (facts.first_step > 1) {
    text += fmt::format("The job went on from a checkpoint: the curve begins at step {}.\n\n",
                        facts.first_step);
  }
  return text + CurveTable(facts.losses, "loss") + CurveTable(facts.validations, "validation loss");
}

// How vLLM serves an adapter; empty where it takes none of this rank.
std::string VllmUse(const std::string& base, int r) {
  const auto served = std::find_if(std::begin(kServedRanks), std::end(kServedRanks),
                                   [r](int rank) { return rank >= r; });
  if (served == std::end(kServedRanks)) return "";
  return fmt::format(
      "```\nvllm serve {} --enable-lora --max-lora-rank {} --lora-modules mine=FOLDER\n```\n\n",
      base, *served);
}

std::string AdapterUse(const TrainingFacts& facts, const spec::JobSpec& spec) {
  const std::string id = HubIdOf(facts.base), base = id.empty() ? facts.base : id;
  std::string text = fmt::format(
      "```python\nfrom peft import PeftModel\nfrom transformers import AutoModelForCausalLM, "
      "AutoTokenizer\n\nmodel = AutoModelForCausalLM.from_pretrained(\"{}\", dtype=\"auto\")\n"
      "model = PeftModel.from_pretrained(model, \"FOLDER\")\ntokenizer = "
      "AutoTokenizer.from_pretrained(\"FOLDER\")\n```\n\n",
      base);
  if (spec.lora.use_dora || !spec.lora.modules_to_save.empty() ||
      spec.lora.bias != spec::Bias::kNone || !spec.lora.rank_pattern.empty() ||
      !spec.lora.alpha_pattern.empty()) {
    return text +
           "vLLM serves no adapters with DoRA, modules_to_save, biases, or ranks and alphas of "
           "single "
           "modules: serve the merged model (`sftctl export JOB --merged`).\n\n";
  }
  return text + VllmUse(base, spec.lora.r);
}

constexpr char kModelUse[] =
    "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
    "model = AutoModelForCausalLM.from_pretrained(\"FOLDER\", dtype=\"auto\")\n"
    "tokenizer = AutoTokenizer.from_pretrained(\"FOLDER\")\n```\n\n";

std::string GgufUse(const std::string& file, std::string_view type) {
  std::string text = fmt::format("```\nllama-cli -m {0}\nollama create NAME -f Modelfile\n", file);
  // What was rounded once is not quantised again.
  if (type != kQuantized)
    text += fmt::format("llama-quantize {0} model-q4_k_m.gguf Q4_K_M\n", file);
  return text + "```\n\n";
}

// The numbers of export.json.
std::string MergeSection(const ordered_json& result) {
  const auto compared = result.find("compared");
  if (compared == result.end() || !compared->is_object()) return "";
  std::string text = fmt::format(
      "## Merge\n\nThe adapter was trained on the {} base and is merged here into the {} one, in "
      "{}. Against base and adapter as trained, on rows of the training:\n\n"
      "| merged into | tokens | largest logit difference | mean | same likeliest token | loss | "
      "loss as trained |\n|---|---|---|---|---|---|---|\n",
      result.value("trained_on", ""), result.value("merged_into", ""), result.value("type", ""));
  for (const auto& [base, numbers] : compared->items()) {
    text += fmt::format("| {} | {} | {:.4g} | {:.4g} | {:.2f} % | {:.4f} | {:.4f} |\n", base,
                        numbers.value("tokens", int64_t{0}),
                        numbers.value("largest_logit_difference", 0.0),
                        numbers.value("mean_logit_difference", 0.0),
                        100 * numbers.value("same_likeliest_token", 0.0),
                        numbers.value("loss_merged", 0.0), numbers.value("loss_as_trained", 0.0));
  }
  if (result.value("type", "") == kQuantized) {
    text += "\nThe differences are those of the merge, before the weights were rounded to q8_0.\n";
  }
  return text + "\n";
}

}  // namespace

std::string HubIdOf(const std::string& base) {
  if (base.starts_with('/') || base.find('/') == std::string::npos) return "";
  return base.substr(0, base.find('@'));
}

std::string ReadCard(const std::string& folder) {
  constexpr int64_t kMostBytes = int64_t{1} << 20;
  std::vector<std::string> roots = {folder};
  // A snapshot of a hub cache has its files beside it.
  const std::filesystem::path snapshots = std::filesystem::path(folder).parent_path();
  if (snapshots.filename() == "snapshots") roots.push_back(snapshots.parent_path() / "blobs");
  const absl::StatusOr<std::string> path =
      io::ResolveBelow(fmt::format("{}/{}", folder, io::kModelCard), roots);
  if (!path.ok() || !io::CheckRegularFile(*path).ok()) return "";
  const absl::StatusOr<std::string> text = io::ReadFile(*path, kMostBytes);
  return text.ok() ? *text : "";
}

std::string TrainingCard(const TrainingFacts& facts, const spec::JobSpec& spec) {
  const bool full = spec.full_finetune();
  std::vector<std::string> tags = {"sft"};
  if (!full) tags.emplace_back(spec.qlora() ? "qlora" : "lora");
  std::string text = FrontMatter(facts.base, facts.base_card, full ? "finetune" : "adapter",
                                 full ? "transformers" : "peft", tags);
  text += fmt::format("# {} of {}\n\n", full ? "Fine-tuned model" : "Adapter", facts.base);
  text += full ? kModelUse : AdapterUse(facts, spec);
  return text + TrainingSection(facts, spec);
}

std::string ExportCard(const ExportFacts& facts) {
  const std::string type = facts.result.value("type", "");
  const char* title = "Merged model";
  const char* library = "transformers";
  const char* relation = type == kQuantized ? "quantized" : "finetune";
  std::string use = kModelUse;
  if (!facts.gguf.empty()) {
    title = "GGUF";
    library = "gguf";
    use = GgufUse(facts.gguf, type);
  } else if (facts.vllm_rank > 0) {
    title = "Adapter for vLLM";
    library = "vllm";
    relation = "adapter";
    const std::string id = HubIdOf(facts.base);
    use = VllmUse(id.empty() ? facts.base : id, facts.vllm_rank) +
          "Each expert has linears of its own here: PEFT reads what the job itself delivered.\n\n";
  }
  std::string text = FrontMatter(facts.base, facts.base_card, relation, library, {"sft"});
  text += fmt::format("# {} of {}\n\n", title, facts.base) + use + MergeSection(facts.result);
  const size_t training = facts.adapter_card.find(kTrainingHeading);
  if (training != std::string::npos) text += facts.adapter_card.substr(training);
  return text;
}

}  // namespace sft::rank
