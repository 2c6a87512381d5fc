#include "common/spec/docs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/spec/fields.h"
#include "common/spec/value.h"

namespace sft::spec {
namespace {

std::string_view TableOf(const Field& field) {
  return field.key.substr(0, field.key.size() - LeafOf(field.key).size() - 1);
}

std::string DefaultOf(const Field& field) {
  if (!field.derived.empty()) return std::string(field.derived);
  return field.def.empty() ? "empty" : std::string(field.def);
}

std::string Join(const std::vector<std::string>& words, std::string_view quote) {
  std::string text;
  for (const std::string& word : words) {
    text += fmt::format("{}{}{}{}", text.empty() ? "" : ", ", quote, word, quote);
  }
  return text;
}

// A sentence about values that do not work yet; empty where all legal values do.
std::string SupportNote(const Field& field) {
  if (field.supported.empty()) return "";
  return fmt::format("Only {} is accepted: {}.",
                     fmt::join(SplitWords(field.supported, '|'), " or "), field.refusal);
}

std::string Escape(std::string_view text) {
  std::string escaped;
  for (char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// A sentence about words of other tools that are taken with a warning; empty where there are none.
std::string WarningNote(const Field& field) {
  if (field.noted_words.empty()) return "";
  std::vector<std::string> words;
  for (std::string_view word : SplitWords(field.noted_words, '|')) words.emplace_back(word);
  return fmt::format("Warns of {}: {}.", Join(words, "\""), field.note);
}

std::string Row(const Field& field) {
  std::string doc(field.doc);
  if (const std::string note = WarningNote(field); !note.empty()) doc += " " + note;
  if (const std::string note = SupportNote(field); !note.empty()) doc += " " + note;
  if (field.effect == Effect::kIgnored) doc = "No effect. " + doc;
  std::vector<std::string> names;
  for (std::string_view alias : SplitWords(field.aliases, ' ')) names.emplace_back(alias);
  return fmt::format("| `{}` | {} | {} | {} | {} |\n", LeafOf(field.key),
                     Escape(Expectation(field)), Escape(DefaultOf(field)), Escape(doc),
                     Join(names, "`"));
}

constexpr std::string_view kIntro = R"(# The job file

A job is a TOML, YAML or JSON file. This page is generated from the table of keys in `common/spec`
(`sft-config-doc`), which also drives the parser, the checks and `sftctl explain`.

`sftctl init --list` shows templates of job files, `sftctl init --template qlora-8b job.toml`
writes one.

A file needs `job.model`, `job.data` and the GPUs (`compute.variant`, or `compute.gpu_type`);
every other key has a default. `configs/` holds complete examples: `demo.toml` (two CPU ranks),
`multi_gpu_qlora_4xh100.toml`, `multi_gpu_fft_8xh100.toml`, `qlora_14b_2xrtx4090.toml`,
`qlora_70b_4xh200.toml`, `run_unsloth.yaml` (the words of an Unsloth script),
`multi_gpu_config.yaml`, `rtx4090_sli.yaml`, `a100_pair.yaml` and `h200_quad.yaml` (those of
SFT-Play), `example_template.json` (those of a trainer),
`nodes_gemma3_27b_2x2xh100.yaml` and `nodes_unsloth_2x4xh100.yaml` (two machines),
`long_run.toml` (checkpoints, restarts, lost nodes, early stopping, the best model), and
`generate_2xcpu.toml`
([answers to prompts](generate.md)). `sftctl submit --dry-run FILE`
shows each resolved value with where it came from, and all problems at once.

## TOML, YAML and JSON

All three hold the same tables and keys: `[lora]` with `r = 16`, `lora:` with `r: 16` below it, and
`{"lora": {"r": 16}}` say the same. The file's ending (`.toml`, `.yaml`, `.yml`, `.json`) says
which it is, without one of these its first line does. A file of YAML's or JSON's ending whose first
line is one of TOML (`[job]`, `model = "m"`) is read as TOML, as every file was before. In YAML and
JSON `null` leaves a key out. A key that stands twice in a table is an error.

- **YAML** is read as version 1.2 has it, and an unquoted word by its key: `yes`, `no`, `on` and
  `off` are true and false where a key takes those and text elsewhere, `1e-4` is a number, and a
  name may be one (`name: 2024`). `010`, `0x10`, `1_000` and `1:30` are no numbers, as readers of
  YAML differ on them. Anchors, aliases, merges (`<<`), tags and several documents are refused: a
  value stands where its key is.
- **JSON** may have comments (`//`, `/* */`), as those of other tools do.

## Where a value comes from

From weakest to strongest: the default, the job file, the environment, the flags of `sftctl
submit` (`--dataset`, `--model`, ...), `--set key=value` as typed. An override of one of several
keys that depend on each other takes the others with it: `--set compute.gpu_count=2` over a file
for `H100-4x` asks for `H100-2x`.

Environment variables are read where the job is submitted, never on a node; an empty one counts as
not set. `SYNTH_GPU_TYPE` holds a variant such as `H100-4x`, or a type such as `H100`.
`TRAIN_<KEY>` and `MODEL_<KEY>` stand for each spelling `train.<key>` and `model.<key>` below
(`TRAIN_BATCH_SIZE`, `TRAIN_LEARNING_RATE`, `MODEL_MAX_SEQ_LEN`, ...); one that names no key is a
warning, and its value is not sent. Beside them:

{variables}
These variables of other tools, and any other `UNSLOTH_*`, have no effect and give a warning:

{foreign}
## Batch arithmetic

`global_batch = per_device_batch * gpu_count * gradient_accumulation_steps`. Missing values are
derived. Where a file contradicts itself, `global_batch` stands, the accumulation is derived and a
warning gives both numbers; an override of a factor wins over the file. A batch that cannot be
divided is an error that suggests one that can. With a pipeline, with
shared rows or with shared matrices, `gpu_count / pipeline_parallel_size`, `gpu_count /
context_parallel_size` or `gpu_count / tensor_parallel_size` stands in the place of `gpu_count`:
those GPUs take their rows together.

## Spellings

Keys of other tools are accepted under the names in the last column. Keys of `[hyperparameters]`,
`[hyperparameters.parallelism]`, `[training.validation]` (except `enabled`) and `[checkpoint]` may
also be written as `train.<key>`, or alone at the top of the file. A key may be given once only:
the same value under two spellings is a warning, two values are an error. A value that asks for
something that does not exist yet is refused with "not supported yet: ...".

A duration has a unit: "90s", "15m", "8h", "2d"; a bare number other than 0 is an error. Names and
paths must not contain control or invisible characters (U+202E, zero-width characters). A file has
at most 1 MiB, 8192 names of keys and tables, 16 parts and 256 bytes in one name, and eight nested
brackets (16 nested levels in YAML and JSON).
)";

// Replaces the word `name` in `text` by `by`.
void Replace(std::string_view name, const std::string& by, std::string* text) {
  text->replace(text->find(name), name.size(), by);
}

std::string VariablesTable() {
  std::string text = "| Variable | Key |\n|---|---|\n";
  for (const Field* field : Fields()) {
    for (std::string_view name : SplitWords(field->env, ' ')) {
      text += fmt::format("| `{}` | `{}` |\n", name, field->key);
    }
  }
  for (const SwitchVariable& variable : SwitchVariables()) {
    std::vector<std::string> keys;
    for (std::string_view pair : SplitWords(variable.keys, ' ')) keys.emplace_back(pair);
    text += fmt::format("| `{}` = 1 | {} |\n", variable.name, Join(keys, "`"));
  }
  return text;
}

std::string ForeignVariablesTable() {
  std::string text = "| Variable | Instead |\n|---|---|\n";
  for (const ForeignVariable& foreign : ForeignVariables()) {
    text += fmt::format("| `{}` | {} |\n", foreign.name, foreign.instead);
  }
  return text;
}

}  // namespace

std::string ConfigMarkdown() {
  std::string text(kIntro);
  Replace("{variables}", VariablesTable(), &text);
  Replace("{foreign}", ForeignVariablesTable(), &text);
  std::string_view table;
  bool foreign = false;
  for (const Field* field : Fields()) {
    const bool starts_foreign = IsForeign(*field) && !foreign;
    if (starts_foreign) {
      foreign = true;
      text +=
          "\n## Keys of other tools\n\nAccepted so that a job file can be carried over; they have "
          "no "
          "table of their own here.\n";
      table = {};
    }
    if (TableOf(*field) != table) {
      table = TableOf(*field);
      text += fmt::format(
          "\n{} `[{}]`\n\n| Key | Value | Default | Meaning | Other spellings |\n"
          "|---|---|---|---|---|\n",
          foreign ? "###" : "##", table);
    }
    text += Row(*field);
  }
  return text;
}

std::string ExplainKey(std::string_view key) {
  const Field* field = FindField(key);
  if (field == nullptr) field = FindEnvField(key, "");
  std::string text;
  if (field == nullptr) {
    const std::string prefix = std::string(key) + ".";
    for (const Field* each : Fields()) {
      if (!each->key.starts_with(prefix)) continue;
      text += (text.empty() ? "" : "\n") + ExplainKey(each->key);
    }
    return text;
  }
  text = fmt::format("{}\n  {}\n  value     {}\n  default   {}\n", field->key, field->doc,
                     Expectation(*field), DefaultOf(*field));
  if (const std::string note = SupportNote(*field); !note.empty()) {
    text += fmt::format("  today     {}\n", note);
  }
  if (const std::string note = WarningNote(*field); !note.empty()) {
    text += fmt::format("  warning   {}\n", note);
  }
  if (field->effect == Effect::kIgnored)
    text += "  effect    none; accepted for other tools' files\n";
  const std::vector<std::string> aliases = Aliases(*field);
  if (!aliases.empty()) text += fmt::format("  spellings {}\n", Join(aliases, ""));
  std::vector<std::string> variables = EnvNames(*field);
  if (field->key == "compute.gpu_type" || field->key == "compute.variant") {
    variables.insert(variables.begin(), std::string(kGpuTypeVariable));
  }
  if (!variables.empty()) text += fmt::format("  variables {}\n", Join(variables, ""));
  return text;
}

std::string ExplainAll() {
  size_t width = 0;
  for (const Field* field : Fields()) width = std::max(width, field->key.size());
  std::string text;
  for (const Field* field : Fields()) {
    text += fmt::format("{:<{}}  {}\n", field->key, width, DefaultOf(*field));
  }
  return text;
}

}  // namespace sft::spec
