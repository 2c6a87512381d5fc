#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// The one table of job file keys. It drives the parser, ranges, --set, environment overrides,
// `sftctl explain` and docs/config.md: a key exists by standing here, and nowhere else.

namespace sft::spec {

enum class Type { kString, kInt, kFloat, kBool, kChoice, kList, kDuration };

enum class Effect {
  kJob,      // decides something about the job
  kIgnored,  // known from other tools and accepted; nothing here depends on it, a warning says why
};

// One key. Everything is a literal: lists are words separated by '|' (values) or ' ' (names).
struct Field {
  std::string_view key;  // canonical dotted key, as docs and messages show it
  Type type = Type::kString;
  // Text of the default, as it would be typed. Empty with `derived`: see there.
  std::string_view def = "";
  // How the value follows from other keys when it is not given; empty: `def` is the default.
  std::string_view derived = "";
  std::string_view doc = "";
  // Legal range of kInt, kFloat and kDuration (seconds), both ends included unless `above_min`.
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;
  // Legal values of kChoice, and what other spellings of a value stand for: "qlora=lora"; of
  // kBool: "cpu=true".
  std::string_view choices = "";
  std::string_view synonyms = "";
  // kString: a text of many lines (a template), not a name or path that lists and messages show.
  bool is_text = false;
  // kList: an empty list is a value. `max` limits the items.
  bool may_be_empty = false;
  // Where not empty: the values that work today; any other one is refused with `refusal`.
  std::string_view supported = "";
  std::string_view refusal = "";
  // "auto" means the same as leaving the key out: the value is derived.
  bool auto_derives = false;
  // "auto" is a value of its own, of kInt: 0, for the plan to choose (common/plan/plan.h).
  bool plans_auto = false;
  // A word that other tools take here, and why it is refused.
  std::string_view refused_word = "";
  std::string_view refused_reason = "";
  // Other documents' dotted spellings. Leaf spellings are in HasLeafAliases().
  std::string_view aliases = "";
  // Environment variables beside the generic TRAIN_<KEY> and MODEL_<KEY>.
  std::string_view env = "";
  Effect effect = Effect::kJob;
  // The wire protocol (common/base/version.h) from which on workers know the key and do what it
  // says; see common/spec/job_protocol.h.
  int since = 1;
  // The value that workers before `since` act by; its text in JSON. Empty: the default.
  std::string_view before = "";
  // Only the server acts on it: nothing is lost where a worker does not know it.
  bool server_only = false;
};

// Keys in the order of docs/config.md and of a dry run: this product's own tables first, keys of
// other tools (IsForeign) last. Alive for the whole process.
const std::vector<const Field*>& Fields();

// The field of a canonical key or any alias; null when nothing is called so.
const Field* FindField(std::string_view dotted);

// True when some key or alias starts with `table` + ".".
bool IsTable(std::string_view table);

// Keys of other tools that have no table of ours; shown in a dry run only when given.
bool IsForeign(const Field& field);

// True for keys whose last part alone, and "train." + last part, is an alias too
// (hyperparameters, parallelism, validation, checkpoint).
bool HasLeafAliases(const Field& field);

// All spellings other than the canonical key, those of HasLeafAliases included.
std::vector<std::string> Aliases(const Field& field);

// Environment variables that override a field: TRAIN_<KEY> for each alias train.<key>, MODEL_<KEY>
// for each alias model.<key>, and Field::env.
std::vector<std::string> EnvNames(const Field& field);

// SYNTH_GPU_TYPE names a variant ("H100-4x") or a type ("H100"): the one variable with two targets.
inline constexpr std::string_view kGpuTypeVariable = "SYNTH_GPU_TYPE";

// The field that an environment variable overrides with this value; null when it names none.
const Field* FindEnvField(std::string_view variable, std::string_view value);

// Every variable name that a client looks for, in table order.
std::vector<std::string> AllEnvNames();

// What the generic names of variables begin with: one that names no key is a mistake.
inline constexpr std::string_view kVariablePrefixes[] = {"TRAIN_", "MODEL_"};

// A variable that other tools read where they train, and what takes its place here.
struct ForeignVariable {
  std::string_view name;
  std::string_view instead;
};
std::span<const ForeignVariable> ForeignVariables();

// The variable nearest to a misspelt one; empty when nothing is near.
std::string NearestVariable(std::string_view variable);

// The canonical key or table nearest to a misspelt one; empty when nothing is near.
std::string NearestKey(std::string_view dotted);
std::string NearestTable(std::string_view table);

// Keys that a word may stand for where none is near: its letters begin the words of one of the
// key's last parts ("lr": learning_rate), or it is a part of one. At most a handful, likely ones
// first.
std::vector<std::string> KeysLike(std::string_view word);

// Words of a '|' or ' ' separated literal.
std::vector<std::string_view> SplitWords(std::string_view words, char separator);
std::string_view LeafOf(std::string_view dotted);

// The parts of the table; Fields() joins them.
std::span<const Field> JobFields();
std::span<const Field> TrainingFields();
std::span<const Field> ForeignFields();

}  // namespace sft::spec
