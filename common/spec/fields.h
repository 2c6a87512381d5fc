#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// The table of job file keys. It drives the parser, ranges, --set, environment overrides, `sftctl
// explain` and docs/config.md: a key exists by being listed here, and nowhere else.

namespace sft::spec {

enum class Type { kString, kInt, kFloat, kBool, kChoice, kList, kDuration };

enum class Effect {
  kJob,      // has an effect on the job
  kIgnored,  // known from other tools and accepted without effect; a warning says why
};

// One key. All members are literals: lists are words separated by '|' (values) or ' ' (names).
struct Field {
  std::string_view key;  // canonical dotted key, as shown in docs and messages
  Type type = Type::kString;
  // Text of the default as one would type it. Empty with `derived`, see below.
  std::string_view def = "";
  // How the value follows from other keys when it is not given; empty means that `def` is the
  // default.
  std::string_view derived = "";
  std::string_view doc = "";
  // Legal range of kInt, kFloat and kDuration (seconds), both ends included unless `above_min`.
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;
  // Legal values of kChoice, and the values that other spellings stand for: "qlora=lora"; of kBool:
  // "cpu=true".
  std::string_view choices = "";
  std::string_view synonyms = "";
  // kString: a multi-line text (a template), not a name or path that lists and messages show.
  bool is_text = false;
  // kString: a number is taken as its text.
  bool takes_number = false;
  // kString: a date of TOML is taken as its text.
  bool takes_date = false;
  // kList: an empty list is a legal value. `max` limits the items.
  bool may_be_empty = false;
  // kList: a table of the file is taken as its items, each "name=value".
  bool takes_table = false;
  // If not empty, the values that work today; any other is refused with `refusal`.
  std::string_view supported = "";
  std::string_view refusal = "";
  // "auto" means the same as leaving the key out: the value is derived.
  bool auto_derives = false;
  // "auto" is a value of its own (0 for kInt) that the plan replaces (common/plan/plan.h).
  bool plans_auto = false;
  // Words of other tools that are taken as a value of ours, and the warning that says as which.
  std::string_view noted_words = "";
  std::string_view note = "";
  // Dotted spellings used by other documents. Leaf spellings are in HasLeafAliases().
  std::string_view aliases = "";
  // Environment variables beside the generic TRAIN_<KEY> and MODEL_<KEY>.
  std::string_view env = "";
  Effect effect = Effect::kJob;
  // The first wire protocol (common/base/version.h) whose workers know the key and act on it; see
  // common/spec/job_protocol.h.
  int since = 1;
  // Values of a kChoice that are newer than its key, and the first wire protocol whose workers know
  // them.
  std::string_view newer_choices = "";
  int newer_since = 1;
  // The value that older workers act by, as JSON text. Empty means the default.
  std::string_view before = "";
  // Only the server acts on it: a worker need not know it.
  bool server_only = false;
};

// Keys in the order of docs/config.md and of a dry run: this product's own tables first, keys of
// other tools (IsForeign) last. Valid for the whole process.
const std::vector<const Field*>& Fields();

// Finds a field by canonical key or alias; null when there is none.
const Field* FindField(std::string_view dotted);

// True when some key or alias starts with `table` + ".".
bool IsTable(std::string_view table);

// True for keys of other tools that have no table of ours; a dry run shows them only when given.
bool IsForeign(const Field& field);

// True for keys that jobs of this kind (job.kind) have.
bool IsOfKind(const Field& field, std::string_view kind);

// True for keys that can also be written as their last part alone and as "train." + last part
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

// A variable that is a switch: set to 1 or true, it gives several keys their values.
struct SwitchVariable {
  std::string_view name;
  std::string_view keys;  // "key=value key=value"
};
std::span<const SwitchVariable> SwitchVariables();
// Null when the variable is no switch.
const SwitchVariable* FindSwitchVariable(std::string_view variable);

// Names of all variables that a client reads: those of the keys in table order, then the switches.
std::vector<std::string> AllEnvNames();

// Prefixes of the generic variables: a variable with such a prefix that names no key is a mistake.
inline constexpr std::string_view kUnslothPrefix = "UNSLOTH_";
inline constexpr std::string_view kVariablePrefixes[] = {"TRAIN_", "MODEL_", kUnslothPrefix};

// A variable that other tools read on the training machine, and its replacement here.
struct ForeignVariable {
  std::string_view name;
  std::string_view instead;
};
std::span<const ForeignVariable> ForeignVariables();

// The variable closest to a misspelt one; empty when none is close.
std::string NearestVariable(std::string_view variable);

// The canonical key or table closest to a misspelt one; empty when none is close.
std::string NearestKey(std::string_view dotted);
std::string NearestTable(std::string_view table);

// Keys that a word may stand for where no spelling is close: its letters begin the words of the
// key's last part ("lr": learning_rate), or it is a part of the key. At most a handful, likely ones
// first.
std::vector<std::string> KeysLike(std::string_view word);

// Splits a '|' or ' ' separated literal into words.
std::vector<std::string_view> SplitWords(std::string_view words, char separator);
std::string_view LeafOf(std::string_view dotted);

// The parts of the table that Fields() joins.
std::span<const Field> JobFields();
std::span<const Field> TrainingFields();
std::span<const Field> PreferenceFields();
std::span<const Field> AdapterFields();
std::span<const Field> GenerateFields();
std::span<const Field> ExportFields();
std::span<const Field> ForeignFields();

}  // namespace sft::spec
