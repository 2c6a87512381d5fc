#include "common/spec/fields.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <map>
#include <set>

#include "common/base/edit_distance.h"

namespace sft::spec {
namespace {

// A longer name is not a typing mistake, and comparing it with all others would be wasted.
constexpr size_t kLongestMisspelt = 100;

constexpr std::string_view kLeafAliasTables[] = {"hyperparameters", "hyperparameters.parallelism",
                                                 "training.validation", "checkpoint"};

std::string_view TableOf(std::string_view dotted) {
  const size_t dot = dotted.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : dotted.substr(0, dot);
}

std::string Upper(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return upper;
}

constexpr ForeignVariable kForeignVariables[] = {
    {"PYTORCH_CUDA_ALLOC_CONF",
     "the plan sets the allocator; compute.memory_budget_gb limits its memory"},
    {"PYTORCH_ALLOC_CONF",
     "the plan sets the allocator; compute.memory_budget_gb limits its memory"},
    {"DEEPSPEED_CONFIG", "give the file with `sftctl submit --deepspeed FILE`"},
    {"NCCL_ASYNC_ERROR_HANDLING",
     "a failing collective always ends the job; compute.hang_timeout says how long one may take"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING",
     "a failing collective always ends the job; compute.hang_timeout says how long one may take"},
    {"UNSLOTH_COMPILE_MAXIMUM",
     "nothing is compiled at run time and the fast kernels are always on; training.deterministic = "
     "false lets attention sum in any order, which is a little faster"},
};

constexpr SwitchVariable kSwitchVariables[] = {
    {"UNSLOTH_FORCE_SINGLE_GPU", "compute.gpu_count=1 compute.nodes=1"},
};

// Maps every spelling to its field, and lists every table that holds one.
struct Index {
  std::map<std::string, const Field*, std::less<>> names;
  std::map<std::string, const Field*, std::less<>> variables;
  std::vector<std::string> variable_order;
  std::set<std::string, std::less<>> tables;

  void Add(std::string_view name, const Field* field) {
    names.emplace(name, field);
    for (std::string_view table = TableOf(name); !table.empty(); table = TableOf(table)) {
      tables.emplace(table);
    }
  }
  Index() {
    for (const Field* field : Fields()) Add(field->key, field);
    for (const Field* field : Fields()) {
      for (const std::string& alias : Aliases(*field)) Add(alias, field);
      for (const std::string& variable : EnvNames(*field)) {
        if (variables.emplace(variable, field).second) variable_order.push_back(variable);
      }
    }
  }
};

const Index& GetIndex() {
  static const Index index;
  return index;
}

}  // namespace

std::vector<std::string_view> SplitWords(std::string_view words, char separator) {
  std::vector<std::string_view> parts;
  while (!words.empty()) {
    const size_t end = std::min(words.find(separator), words.size());
    if (end > 0) parts.push_back(words.substr(0, end));
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return parts;
}

std::string_view LeafOf(std::string_view dotted) {
  const size_t dot = dotted.rfind('.');
  return dot == std::string_view::npos ? dotted : dotted.substr(dot + 1);
}

const std::vector<const Field*>& Fields() {
  static const std::vector<const Field*> fields = [] {
    std::vector<const Field*> all;
    for (const auto& part : {JobFields(), TrainingFields(), PreferenceFields(), AdapterFields(),
                             GenerateFields(), ExportFields(), ForeignFields()}) {
      for (const Field& field : part) all.push_back(&field);
    }
    return all;
  }();
  return fields;
}

bool IsForeign(const Field& field) {
  const std::span<const Field> foreign = ForeignFields();
  return &field >= foreign.data() && &field < foreign.data() + foreign.size();
}

bool HasLeafAliases(const Field& field) {
  const std::string_view table = TableOf(field.key);
  return LeafOf(field.key) != "enabled" &&
         std::find(std::begin(kLeafAliasTables), std::end(kLeafAliasTables), table) !=
             std::end(kLeafAliasTables);
}

std::vector<std::string> Aliases(const Field& field) {
  std::vector<std::string> aliases;
  for (std::string_view alias : SplitWords(field.aliases, ' ')) aliases.emplace_back(alias);
  if (HasLeafAliases(field)) {
    aliases.push_back("train." + std::string(LeafOf(field.key)));
    aliases.emplace_back(LeafOf(field.key));
  }
  return aliases;
}

std::vector<std::string> EnvNames(const Field& field) {
  std::vector<std::string> names;
  for (std::string_view name : SplitWords(field.env, ' ')) names.emplace_back(name);
  std::vector<std::string> spellings = Aliases(field);
  spellings.emplace_back(field.key);
  for (const std::string& spelling : spellings) {
    const std::string_view table = TableOf(spelling);
    if (table == "train" || table == "model") {
      names.push_back(Upper(table) + "_" + Upper(LeafOf(spelling)));
    }
  }
  return names;
}

const Field* FindField(std::string_view dotted) {
  const auto& names = GetIndex().names;
  const auto found = names.find(dotted);
  return found == names.end() ? nullptr : found->second;
}

bool IsTable(std::string_view table) { return GetIndex().tables.contains(table); }

const Field* FindEnvField(std::string_view variable, std::string_view value) {
  if (variable == kGpuTypeVariable) {
    const size_t dash = value.rfind('-');
    const bool variant = dash != std::string_view::npos && value.ends_with('x') &&
                         value.size() > dash + 2 &&
                         std::all_of(value.begin() + dash + 1, value.end() - 1,
                                     [](unsigned char c) { return std::isdigit(c) != 0; });
    return FindField(variant ? "compute.variant" : "compute.gpu_type");
  }
  if (const SwitchVariable* on = FindSwitchVariable(variable)) {
    return FindField(on->keys.substr(0, on->keys.find('=')));
  }
  const auto& variables = GetIndex().variables;
  const auto found = variables.find(variable);
  return found == variables.end() ? nullptr : found->second;
}

std::vector<std::string> AllEnvNames() {
  std::vector<std::string> names{std::string(kGpuTypeVariable)};
  const std::vector<std::string>& others = GetIndex().variable_order;
  names.insert(names.end(), others.begin(), others.end());
  for (const SwitchVariable& each : kSwitchVariables) names.emplace_back(each.name);
  return names;
}

std::span<const SwitchVariable> SwitchVariables() { return kSwitchVariables; }

const SwitchVariable* FindSwitchVariable(std::string_view variable) {
  for (const SwitchVariable& each : kSwitchVariables) {
    if (each.name == variable) return &each;
  }
  return nullptr;
}

std::span<const ForeignVariable> ForeignVariables() { return kForeignVariables; }

std::string NearestVariable(std::string_view variable) {
  if (variable.size() > kLongestMisspelt) return {};
  std::string best;
  size_t best_distance = SuggestionLimit(variable) + 1;
  for (const std::string& known : AllEnvNames()) {
    const size_t distance = EditDistance(variable, known);
    if (distance < best_distance) best_distance = distance, best = known;
  }
  return best;
}

std::vector<std::string> KeysLike(std::string_view word) {
  constexpr size_t kMost = 5, kShortest = 2;
  if (word.size() < kShortest || word.size() > kLongestMisspelt) return {};
  const auto initials = [](std::string_view leaf) {
    std::string letters;
    for (std::string_view part : SplitWords(leaf, '_')) letters += part.front();
    return letters;
  };
  const auto rank = [&](std::string_view name) {
    const std::string_view leaf = LeafOf(name);
    return initials(leaf) == word ? 0 : leaf.find(word) != leaf.npos ? 1 : 2;
  };
  std::vector<std::string> keys[2];
  for (const Field* field : Fields()) {
    int best = rank(field->key);
    for (const std::string& alias : Aliases(*field)) best = std::min(best, rank(alias));
    if (best < 2) keys[best].emplace_back(field->key);
  }
  keys[0].insert(keys[0].end(), keys[1].begin(), keys[1].end());
  if (keys[0].size() > kMost) keys[0].resize(kMost);
  return keys[0];
}

std::string NearestKey(std::string_view dotted) {
  if (dotted.size() > kLongestMisspelt) return {};
  std::string_view best;
  size_t best_distance = SuggestionLimit(dotted) + 1;
  for (const Field* field : Fields()) {
    // The right key in the wrong table.
    if (LeafOf(field->key) == LeafOf(dotted)) return std::string(field->key);
    const size_t distance = EditDistance(dotted, field->key);
    if (distance < best_distance) best_distance = distance, best = field->key;
  }
  if (!best.empty()) return std::string(best);
  // An alias, or a misspelt key in the wrong table.
  best_distance = SuggestionLimit(LeafOf(dotted)) + 1;
  for (const auto& [name, field] : GetIndex().names) {
    const size_t distance =
        std::min(EditDistance(dotted, name), EditDistance(LeafOf(dotted), LeafOf(name)));
    if (distance < best_distance) best_distance = distance, best = field->key;
  }
  return std::string(best);
}

std::string NearestTable(std::string_view table) {
  if (table.size() > kLongestMisspelt) return {};
  std::string best;
  size_t best_distance = SuggestionLimit(table) + 1;
  for (const std::string& known : GetIndex().tables) {
    const size_t distance =
        std::min(EditDistance(table, known), EditDistance(LeafOf(table), LeafOf(known)) + 1);
    if (distance < best_distance) best_distance = distance, best = known;
  }
  return best;
}

}  // namespace sft::spec
