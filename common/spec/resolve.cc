#include "common/spec/resolve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>

#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/spec/draft.h"
#include "common/spec/hold_out.h"
#include "common/spec/job_file_reader.h"
#include "common/spec/mixture.h"
#include "common/spec/template_settings.h"
#include "common/spec/visit.h"

namespace sft::spec {
namespace {

constexpr std::string_view kNodePrefix = "node:", kModel = "job.model", kName = "job.name",
                           kGroup = "job.group", kMixture = "data.mixture", kData = "job.data";
constexpr size_t kMaxNameBytes = 128;

void ReportUnknown(const RawEntry& entry, Draft* draft) {
  if (!entry.is_table && IsTable(entry.key)) {
    draft->AddProblemAt(entry.key, entry.line,
                        fmt::format("must be a table ([{}] in TOML), but is {}", entry.key,
                                    entry.value ? TypeNameOf(*entry.value) : entry.kind));
    return;
  }
  draft->AddUnknown(entry.key, entry.line, entry.is_table,
                    entry.is_table ? "unknown table" : "unknown key");
}

std::string TakenNow(const Field& field, std::string text) {
  if (field.type == Type::kDuration) {
    const bool bare = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
    return bare ? text + "s" : text;
  }
  const bool named = field.type == Type::kString || field.type == Type::kList;
  return named && !field.is_text ? WithoutHidden(text) : text;
}

Value TakenNow(const Field& field, Value value) {
  if (field.type == Type::kDuration && std::holds_alternative<int64_t>(value)) {
    value = ToText(value);
  }
  if (auto* text = std::get_if<std::string>(&value)) *text = TakenNow(field, std::move(*text));
  if (auto* list = std::get_if<std::vector<std::string>>(&value)) {
    for (std::string& item : *list) item = TakenNow(field, std::move(item));
    list->resize(std::min(list->size(), MostItems(field)));
  }
  return value;
}

// One spelling of the file with the rows is also that of several.
const Field* FieldOf(const RawEntry& entry) {
  const bool list = entry.value && std::holds_alternative<std::vector<std::string>>(*entry.value);
  return FindField(list && entry.key == "data.train" ? kMixture : std::string_view(entry.key));
}

void ReadEntry(const RawEntry& entry, std::string_view file_name, Draft* draft) {
  const Field* field = FieldOf(entry);
  // A section without keys.
  if (field == nullptr && entry.is_null && IsTable(entry.key)) return;
  if (field == nullptr) return ReportUnknown(entry, draft);
  if (entry.is_null) return;
  const bool dated = field->takes_date && !entry.value && entry.plain;
  if (entry.is_table || (!entry.value && !dated)) {
    const std::string what = entry.is_table ? "a table" : entry.kind;
    draft->AddProblemAt(field->key, entry.line,
                        field->refusal.empty()
                            ? fmt::format("must be {}, but is {}", Expectation(*field), what)
                            : fmt::format("{} (is {})", field->refusal, what));
    return;
  }
  const Value given = dated ? Value(*entry.plain) : TypedBy(*field, entry);
  if (LeavesOut(*field, given)) return;
  absl::StatusOr<Value> value =
      Check(*field, draft->taken_before() ? TakenNow(*field, given) : given);
  if (!value.ok()) {
    draft->AddProblemAt(field->key, entry.line, std::string(Message(value.status())));
    return;
  }
  draft->SetFromFile(*field, *std::move(value), file_name, entry.line);
  if (IsNoted(*field, given)) draft->MarkNoted(field->key);
}

// Reads the table that stands for a list, the first of `entries`; returns how many it takes up.
size_t ReadTable(const Field& field, std::span<const RawEntry> entries, std::string_view file_name,
                 Draft* draft) {
  const RawEntry& table = entries.front();
  const std::string prefix = table.key + ".";
  size_t end = 1;
  while (end < entries.size() && entries[end].key.starts_with(prefix)) ++end;
  absl::StatusOr<std::vector<std::string>> items =
      ArgumentsOfTable(entries.subspan(1, end - 1), prefix);
  absl::StatusOr<Value> value =
      items.ok() ? Check(field, Value(*std::move(items))) : absl::StatusOr<Value>(items.status());
  if (value.ok()) {
    draft->SetFromFile(field, *std::move(value), file_name, table.line);
  } else {
    draft->AddProblemAt(field.key, table.line, std::string(Message(value.status())));
  }
  return end;
}

void ReadFile(std::string_view text, std::string_view file_name, Draft* draft) {
  const auto read = ReadJobFile(text, file_name);
  if (const auto* error = std::get_if<ReadError>(&read)) {
    draft->AddProblemAt("", error->line, error->message);
    return;
  }
  std::string skipped;  // an unknown table is one problem, not one per key in it
  const auto& entries = std::get<std::vector<RawEntry>>(read);
  for (size_t i = 0; i < entries.size(); ++i) {
    const RawEntry& entry = entries[i];
    if (!skipped.empty() && entry.key.starts_with(skipped)) continue;
    if (const Field* field = FindField(entry.key);
        entry.is_table && field != nullptr && field->takes_table) {
      i += ReadTable(*field, std::span(entries).subspan(i), file_name, draft) - 1;
      continue;
    }
    if (entry.is_table && IsTable(entry.key)) continue;
    if (entry.is_table) skipped = entry.key + ".";
    ReadEntry(entry, file_name, draft);
  }
}

// True for "org/name": parts that could name a folder below a --models folder.
bool IsModelId(std::string_view model) {
  while (!model.empty()) {
    const size_t slash = std::min(model.find('/'), model.size());
    const std::string_view part = model.substr(0, slash);
    if (part.empty() || part == "." || part == ".." || part == "~") return false;
    model.remove_prefix(std::min(slash + 1, model.size()));
  }
  return true;
}

void CheckModelName(Draft* draft) {
  const std::string model = draft->String(kModel);
  if (draft->Faulty({kModel}) || model.starts_with('/') || IsModelId(model)) return;
  draft->AddProblem(kModel, fmt::format("\"{}\" is neither an absolute path of a directory on the "
                                        "nodes nor an id as \"org/name\"",
                                        model));
}

void CheckLabels(Draft* draft) {
  for (const std::string_view key : {kName, kGroup}) {
    const size_t bytes = draft->String(key).size();
    if (draft->Faulty({key}) || bytes <= kMaxNameBytes) continue;
    draft->AddLater(key, fmt::format("has {} bytes; a label has at most {}", bytes, kMaxNameBytes));
  }
}

// True for a list in NCCL's syntax: "eth0", "eth", "=eth0,=eth1", "^docker0,lo".
bool IsInterfaceList(std::string_view text) {
  constexpr size_t kMostNames = 32, kLongestName = 15;  // IFNAMSIZ - 1
  if (text.starts_with('^')) text.remove_prefix(1);
  size_t names = 0;
  for (bool more = true; more; ++names) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view name = text.substr(0, comma);
    if (name.starts_with('=')) name.remove_prefix(1);
    const bool fits =
        !name.empty() && name.size() <= kLongestName &&
        std::all_of(name.begin(), name.end(), [](unsigned char c) {
          return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.' || c == ':' || c == '@';
        });
    if (!fits) return false;
    more = comma < text.size();
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return names <= kMostNames;
}

void CheckInterface(Draft* draft) {
  constexpr std::string_view kInterface = "compute.network_interface";
  const std::string text = draft->String(kInterface);
  if (text.empty() || draft->Faulty({kInterface}) || IsInterfaceList(text)) return;
  draft->AddLater(kInterface,
                  fmt::format("\"{}\" is no network interface: write a name as `ip link` shows it "
                              "(\"eth0\"), or several with commas between them",
                              text.substr(0, 80)));
}

// Lists of "name=theirs" in which each name is one of `names`.
void CheckNames(Draft* draft, std::string_view key, std::string_view names) {
  const DraftEntry* const entry = draft->Find(key);
  if (entry == nullptr || draft->Faulty({key})) return;
  const auto* const items = std::get_if<std::vector<std::string>>(&entry->value);
  if (items == nullptr) return;
  const std::vector<std::string_view> known = SplitWords(names, ' ');
  std::set<std::string_view> seen;
  for (const std::string_view item : *items) {
    const size_t equals = std::min(item.find('='), item.size());
    const std::string_view name = item.substr(0, equals),
                           theirs = item.substr(std::min(equals + 1, item.size()));
    if (theirs.empty() || std::ranges::find(known, name) == known.end()) {
      draft->AddProblem(key, fmt::format("\"{}\" is not NAME=THEIRS with a name of {}", item,
                                         fmt::join(known, ", ")));
    } else if (!seen.insert(theirs).second ||
               (key == "data.columns" && !seen.insert(name).second)) {
      draft->AddProblem(key, fmt::format("\"{}\" gives a name for the second time", item));
    }
  }
}

void CheckData(Draft* draft) {
  CheckNames(draft, "data.columns",
             "messages conversations prompt completion instruction input output system history "
             "question answer tools text chosen rejected label");
  CheckNames(draft, "data.roles", "system developer user assistant tool");
  if (draft->Faulty({"data.val_split"})) return;
  const absl::StatusOr<HoldOut> held = ParseHoldOut(draft->String("data.val_split"));
  if (!held.ok()) {
    draft->AddProblem("data.val_split", std::string(Message(held.status())));
  } else if (held->rows > 0 && draft->Has(kMixture) && draft->Given(kMixture)) {
    draft->AddProblem("data.val_split", "of several files a share is held out, such as 0.05");
  } else if (!held->on() && !draft->String("data.group_by").empty()) {
    draft->AddWarning("data.group_by", "has no effect without data.val_split");
  }
}

// The first of several files stands for all where one is asked for.
void ResolveMixture(Draft* draft) {
  const DraftEntry* const entry = draft->Find(kMixture);
  if (entry == nullptr || draft->Faulty({kMixture})) return;
  const auto* const items = std::get_if<std::vector<std::string>>(&entry->value);
  if (items == nullptr || items->empty()) return;
  std::vector<TrainPart> parts;
  for (const std::string& item : *items) {
    absl::StatusOr<TrainPart> part = ParseTrainPart(item);
    if (!part.ok()) return draft->AddProblem(kMixture, std::string(Message(part.status())));
    parts.push_back(*std::move(part));
    const std::string& path = parts.back().path;
    if (path.starts_with(kNodePrefix) && !path.starts_with("node:/")) {
      return draft->AddProblem(
          kMixture, fmt::format("\"{}\" must give an absolute path after \"node:\"", path));
    }
  }
  if (draft->Given(kData)) {
    return draft->AddProblem(kMixture, fmt::format("{} names one file with rows already; leave one "
                                                   "of the two out",
                                                   draft->Quote(kData)));
  }
  draft->Derive(kData, parts.front().path, kMixture);
  if (draft->Given("data.max_examples") && draft->Int("data.max_examples") > 0) {
    return draft->AddProblem("data.max_examples",
                             "there are several files: give max_examples to those of data.train");
  }
}

void CheckRequired(Draft* draft) {
  ResolveMixture(draft);
  for (const std::string_view key : {"job.model", "job.data"}) {
    if (draft->Faulty({key})) continue;
    const std::string kind = draft->Has("job.kind") ? draft->String("job.kind") : kTrainingKind;
    if ((kind == kServeKind || kind == kExportKind) && key == "job.data" && !draft->Has(key)) {
      continue;
    }
    if (!draft->Has(key)) {
      draft->AddProblem(key, fmt::format("is missing; set it in the file, or with {}",
                                         key == "job.data" ? "--dataset PATH" : "--model MODEL"));
    } else if (draft->String(key).empty()) {
      draft->AddProblem(key, "is empty");
    }
  }
  CheckModelName(draft);
  CheckLabels(draft);
  CheckInterface(draft);
  CheckData(draft);
  for (const std::string_view key : {"job.data", "data.val"}) {
    const std::string value = draft->Has(key) ? draft->String(key) : "";
    if (value.starts_with(kNodePrefix) && !value.starts_with("node:/")) {
      draft->AddProblem(key,
                        fmt::format("\"{}\" must give an absolute path after \"node:\"", value));
    }
  }
}

void WarnIgnored(Draft* draft) {
  for (const Field* field : Fields()) {
    const DraftEntry* entry = draft->Find(field->key);
    if (entry != nullptr && entry->noted) draft->AddWarning(field->key, std::string(field->note));
    if (field->effect == Effect::kIgnored && draft->Given(field->key)) {
      draft->AddWarning(field->key, fmt::format("has no effect: {}", field->doc));
    }
  }
}

// Keys without effect while another key has one of these values.
struct Idle {
  std::string_view keys;    // separated by ' '
  std::string_view by;      // the other key
  std::string_view values;  // separated by '|'
};
constexpr Idle kIdle[] = {
    {"lora.r lora.alpha lora.dropout lora.target_modules lora.bias lora.use_rslora "
     "lora.use_dora lora.init_lora_weights lora.loraplus_lr_ratio lora.rank_pattern "
     "lora.alpha_pattern "
     "lora.modules_to_save lora.ensure_weight_tying",
     "training.mode", "full_finetune"},
    {"quantization.type quantization.double_quant", "quantization.bits", "0|8"},
    {"hyperparameters.lr_num_cycles", "hyperparameters.lr_scheduler",
     "constant|linear|cosine|polynomial|inverse_sqrt|cosine_with_min_lr|warmup_stable_decay"},
    {"hyperparameters.lr_power hyperparameters.lr_end", "hyperparameters.lr_scheduler",
     "constant|linear|cosine|cosine_with_restarts|inverse_sqrt|cosine_with_min_lr|"
     "warmup_stable_decay"},
    {"hyperparameters.lr_min hyperparameters.lr_min_ratio", "hyperparameters.lr_scheduler",
     "constant|linear|cosine|cosine_with_restarts|polynomial|inverse_sqrt"},
    {"hyperparameters.lr_decay_steps hyperparameters.lr_decay", "hyperparameters.lr_scheduler",
     "constant|linear|cosine|cosine_with_restarts|polynomial|inverse_sqrt|cosine_with_min_lr"},
    {"training.validation.eval_steps", "training.validation.evaluation_strategy", "no|epoch"},
    {"training.validation.early_stopping_threshold", "training.validation.early_stopping_patience",
     "0"},
    {"training.validation.generate_metrics training.validation.generate_pattern "
     "training.validation.generate_every training.validation.generate_rows "
     "training.validation.generate_max_new_tokens training.validation.generate_num_beams "
     "training.validation.generate_seconds",
     "training.validation.predict_with_generate", "false"},
    {"generate.length_penalty generate.early_stopping", "generate.num_beams", "1"},
    {"checkpoint.save_steps", "checkpoint.save_strategy", "no|epoch|time"},
    {"checkpoint.save_minutes", "checkpoint.save_strategy", "no|epoch|steps"},
    {"scheduling.warn_before", "scheduling.time_limit", "0s|0m|0h|0d"},
    {"compute.memory_budget_gb compute.nccl_debug compute.cuda_launch_blocking", "compute.gpu_type",
     "CPU"},
};

// True for a value that changes nothing, so that ignoring it needs no warning.
bool AsksForNothing(const Field& field, const std::string& text) {
  static constexpr std::string_view kNothing[] = {"", "0", "0s", "false", "off", "none"};
  return text == field.def &&
         std::find(std::begin(kNothing), std::end(kNothing), text) != std::end(kNothing);
}

// Beside adapters these two are about modules that are trained whole.
void WarnIdleWithoutWholeModules(Draft* draft) {
  const DraftEntry* mode = draft->Find("training.mode");
  const DraftEntry* whole = draft->Find("lora.modules_to_save");
  if (mode != nullptr && ToText(mode->value) == "full_finetune") return;
  if (whole != nullptr && !std::get<std::vector<std::string>>(whole->value).empty()) return;
  for (const char* key : {"lora.ensure_weight_tying", "hyperparameters.embedding_learning_rate"}) {
    if (!draft->Given(key) || AsksForNothing(*FindField(key), ToText(draft->Find(key)->value))) {
      continue;
    }
    draft->AddWarning(key, "has no effect without lora.modules_to_save");
  }
}

void WarnIdle(Draft* draft) {
  for (const Idle& idle : kIdle) {
    const DraftEntry* other = draft->Find(idle.by);
    if (other == nullptr || draft->Faulty({idle.by})) continue;
    const auto values = SplitWords(idle.values, '|');
    if (std::find(values.begin(), values.end(), ToText(other->value)) == values.end()) continue;
    std::vector<std::string_view> given = SplitWords(idle.keys, ' ');
    std::erase_if(given, [&](std::string_view key) {
      return !draft->Given(key) || AsksForNothing(*FindField(key), ToText(draft->Find(key)->value));
    });
    if (given.empty()) continue;
    draft->AddWarning(
        given.front(),
        fmt::format("{} no effect with {}",
                    given.size() == 1 ? "has" : fmt::format("{} have", fmt::join(given, ", ")),
                    draft->Quote(idle.by)));
  }
  WarnIdleWithoutWholeModules(draft);
}

std::string NameOf(std::string_view file_name) {
  const size_t slash = file_name.rfind('/');
  if (slash != std::string_view::npos) file_name.remove_prefix(slash + 1);
  file_name = WithoutFormEnding(file_name);
  // Drop endings that would not be valid in job.name.
  while (file_name.size() > kMaxNameBytes || !IsUtf8(file_name)) file_name.remove_suffix(1);
  return WithoutHidden(file_name);
}

template <typename T>
void Assign(const Value& value, T* member) {
  if constexpr (std::is_same_v<T, bool>) {
    *member = std::get<bool>(value);
  } else if constexpr (std::is_integral_v<T>) {
    // A key that also takes a share, in its other meaning, holds a whole number by now.
    const auto* number = std::get_if<double>(&value);
    *member = static_cast<T>(number != nullptr ? *number : std::get<int64_t>(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    *member = std::get<double>(value);
  } else if constexpr (std::is_enum_v<T>) {
    ParseEnum(std::get<std::string>(value), member);
  } else {
    *member = std::get<T>(value);
  }
}

// Builds the typed spec; complete when every check has passed.
JobSpec Bind(const Draft& draft) {
  JobSpec spec;
  VisitSpec(spec, [&](std::string_view key, auto& member) {
    if (const DraftEntry* entry = draft.Find(key)) Assign(entry->value, &member);
  });
  spec.parallelism.sharding = ShardingOf(draft);
  constexpr std::string_view kBf16 = "hyperparameters.parallelism.bf16";
  if (draft.Has(kBf16)) {
    spec.parallelism.compute_type = draft.Bool(kBf16) ? ComputeType::kBf16 : ComputeType::kFp32;
  }
  return spec;
}

}  // namespace

Resolution Resolve(std::string_view text, std::string_view file_name,
                   const std::vector<Override>& overrides, const ResolveOptions& options) {
  Draft draft(options.taken_before);
  ReadFile(text, file_name, &draft);
  const bool readable = !draft.Faulty({""});
  ApplyOverrides(overrides, &draft);
  Resolution resolution;
  if (readable) {
    ApplyDeepspeed(&draft);
    CheckRequired(&draft);
    ResolveTemplate(options, &draft);
    ResolveKind(&draft);
    ResolveDialect(&draft);
    ResolveMethod(&draft);
    ResolvePreference(&draft);
    ResolvePacking(&draft);
    ResolveTopology(options, &draft);
    ResolvePipeline(&draft);
    CheckNodesOfKind(&draft);
    ResolveSplits(&draft);
    ResolveBatch(&draft);
    ResolveSchedule(&draft);
    ResolveSharding(&draft);
    ResolvePrecision(&draft);
    ResolveValidation(&draft);
    ResolveSaving(&draft);
    ResolveScheduling(&draft);
    ResolveNotify(&draft);
    WarnIgnored(&draft);
    if (!draft.Has("job.name")) {
      draft.Derive("job.name", NameOf(file_name), "the file's name");
    }
    draft.FillDefaults();
    WarnIdle(&draft);
    resolution.values = draft.Values();
    // A job whose kind is not known shows all keys.
    const std::string kind = draft.Faulty({"job.kind"}) ? "" : draft.String("job.kind");
    std::erase_if(resolution.values, [&](const ResolvedValue& value) {
      return !kind.empty() && !IsOfKind(*FindField(value.key), kind);
    });
  }
  resolution.problems = draft.TakeProblems();
  resolution.warnings = draft.TakeWarnings();
  resolution.spec = Bind(draft);
  return resolution;
}

std::string AsTakenNow(std::string_view key, std::string text) {
  const Field* field = FindField(key);
  return field == nullptr ? text : TakenNow(*field, std::move(text));
}

std::string_view NodePath(std::string_view value) {
  if (!value.starts_with(kNodePrefix)) return {};
  return value.substr(kNodePrefix.size());
}

std::vector<NeededFile> NeededFiles(const Resolution& resolution) {
  std::vector<NeededFile> files;
  const JobSpec& spec = resolution.spec;
  for (const ResolvedValue& value : resolution.values) {
    const bool named =
        value.key == "job.data" || (value.key == "data.val" && spec.training.validation.enabled);
    if (!named || value.text.empty() || value.text.starts_with(kNodePrefix)) continue;
    files.push_back({value.key, value.text, value.overridden, value.line});
  }
  const absl::StatusOr<std::vector<TrainPart>> parts = TrainParts(spec);
  if (spec.data.mixture.empty() || !parts.ok()) return files;
  const auto given = std::ranges::find(resolution.values, kMixture, &ResolvedValue::key);
  for (NeededFile& file : files) {
    if (file.key != kData || given == resolution.values.end()) continue;
    file.from_override = given->overridden;
    file.line = given->line;
  }
  for (size_t i = 1; i < parts->size(); ++i) {
    if ((*parts)[i].path.starts_with(kNodePrefix) || given == resolution.values.end()) continue;
    files.push_back({PartKey(i), (*parts)[i].path, given->overridden, given->line});
  }
  return files;
}

}  // namespace sft::spec
