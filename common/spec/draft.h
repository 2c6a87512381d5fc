#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/fields.h"
#include "common/spec/job_spec.h"
#include "common/spec/resolve.h"
#include "common/spec/value.h"

namespace sft::spec {

// Keys that several derivations read.
inline constexpr std::string_view kGpuCountKey = "compute.gpu_count", kNodesKey = "compute.nodes",
                                  kGpusPerNodeKey = "compute.gpus_per_node",
                                  kContextKey = "hyperparameters.parallelism.context_parallel_size",
                                  kPipelineKey =
                                      "hyperparameters.parallelism.pipeline_parallel_size",
                                  kTensorKey = "hyperparameters.parallelism.tensor_parallel_size";

// Source of a value, by precedence; a higher one wins.
enum class Strength { kDefault, kFile, kEnvironment, kFlag, kSet };

// One value of a draft, and where it was given.
struct DraftEntry {
  Value value;
  std::string origin;
  int line = 0;
  Strength strength = Strength::kDefault;
  bool attached = false;  // from a DeepSpeed JSON that came with the file; its strength is kFile
  // The key that gave the value where it is another one: a copy in [data.topology], or the key from
  // which a derived value follows.
  std::string given_as;
  bool noted = false;         // given by one of Field::noted_words
  bool taken_before = false;  // in a job accepted earlier, so that newer rules do not refuse it
};

// A job file while it is being resolved: the values given so far and the problems found. The
// derivations (method, topology, batch) read and complete it. All keys are canonical and must exist
// in the table.
class Draft {
 public:
  // `taken_before` is that of ResolveOptions.
  explicit Draft(bool taken_before = false) : taken_before_(taken_before) {}
  bool taken_before() const { return taken_before_; }
  // Records a value of the file; two spellings of one key must agree.
  void SetFromFile(const Field& field, Value value, std::string_view file_name, int line);
  // Records a value of the DeepSpeed JSON, called `name` there; it must agree with the file.
  void SetAttached(const Field& field, Value value, std::string_view name);
  // Replaces the value by an equivalent one; its origin stays.
  void Rewrite(std::string_view key, Value value);
  void SetOverride(const Field& field, Value value, const Override& override_);
  // Field::note is a warning about this value, as long as no override replaces it.
  void MarkNoted(std::string_view key) { entries_.find(key)->second.noted = true; }
  // Copies the value of `source` with its origin, so that errors name that key.
  void TakeFrom(std::string_view key, std::string_view source);
  // Sets a value that follows from others; `from` names them ("compute.variant").
  void Derive(std::string_view key, Value value, std::string_view from);
  // Fills in the defaults of the table for missing keys.
  void FillDefaults();

  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  // True when the file or an override gave it: neither derived nor a default.
  bool Given(std::string_view key) const { return StrengthOf(key) >= Strength::kFile; }
  bool Overridden(std::string_view key) const { return StrengthOf(key) > Strength::kFile; }
  bool Attached(std::string_view key) const { return Has(key) && Find(key)->attached; }
  Strength StrengthOf(std::string_view key) const;
  // Removes a value that only the file gave; true when none is left.
  bool DropFromFile(std::string_view key);

  const DraftEntry* Find(std::string_view key) const;
  int64_t Int(std::string_view key) const;
  bool Bool(std::string_view key) const;  // false when missing
  std::string String(std::string_view key) const;
  double Float(std::string_view key) const;

  // The key that a person wrote to get this value: `key` itself, or the copy that stands for it.
  std::string_view WrittenAs(std::string_view key) const;
  // Adds a problem or a warning at the line that gave the key, under the key as written there.
  void AddProblem(std::string_view key, std::string message);
  // Adds a problem of a rule that is newer than some jobs: a warning for a job that was accepted
  // before.
  void AddLater(std::string_view key, std::string message);
  void AddProblemAt(std::string_view key, int line, std::string message);
  // Adds a problem about an unknown name: `what` ("unknown key"), with suggestions. Suggestions are
  // looked up for the first hundred only, since each compares with all names.
  void AddUnknown(std::string_view name, int line, bool is_table, std::string_view what);
  void AddWarning(std::string_view key, std::string message);
  // A value with its origin, for messages: "compute.gpu_count = 4 (--set)".
  std::string Quote(std::string_view key) const;
  // True when one of the keys has a problem, so that checks which build on it would only add noise.
  bool Faulty(std::initializer_list<std::string_view> keys) const;

  std::vector<ResolvedValue> Values() const;
  std::vector<Problem> TakeProblems();
  std::vector<Problem> TakeWarnings();

 private:
  const bool taken_before_;
  std::map<std::string, DraftEntry, std::less<>> entries_;
  std::set<std::string, std::less<>> faulty_;  // canonical keys and the keys as written
  // Limits on those reported; the count of the rest is reported too.
  static constexpr int kMostProblems = 1000, kMostWarnings = 200;
  std::vector<Problem> problems_;
  std::vector<Problem> warnings_;
  int problem_count_ = 0, warning_count_ = 0;
  int unknown_ = 0;
};

// The ranks that take different rows, for the batch arithmetic: all GPUs, or fewer where several
// share a row.
struct RowRanks {
  int64_t count = 1;
  std::string quote;    // with its origin: "compute.gpu_count = 4 (--set)"
  std::string formula;  // "gpu_count"
};
RowRanks RowRanksOf(const Draft& draft);  // splits.cc

// The steps of Resolve after parsing, in this order. Each reports into the draft.
void ApplyOverrides(const std::vector<Override>& overrides, Draft* draft);  // overrides.cc
void ApplyDeepspeed(Draft* draft);                                          // deepspeed.cc
void ResolveKind(Draft* draft);                                             // kind.cc
void ResolveDialect(Draft* draft);                                          // dialect.cc
void ResolveMethod(Draft* draft);                                           // method.cc
void ResolvePreference(Draft* draft);                                       // preference.cc
void ResolvePacking(Draft* draft);                                          // packing.cc
void ResolveTopology(const ResolveOptions& options, Draft* draft);          // topology.cc
void ResolvePipeline(Draft* draft);                                         // pipeline.cc
void CheckNodesOfKind(Draft* draft);                                        // kind.cc
void ResolveSplits(Draft* draft);                                           // splits.cc
void ResolveBatch(Draft* draft);                                            // batch.cc
void ResolveSchedule(Draft* draft);                                         // schedule.cc
void ResolveSharding(Draft* draft);                                         // sharding.cc
void ResolvePrecision(Draft* draft);                                        // method.cc
void ResolveValidation(Draft* draft);                                       // method.cc
void ResolveSaving(Draft* draft);                                           // method.cc
void ResolveScheduling(Draft* draft);                                       // scheduling.cc
void ResolveNotify(Draft* draft);                                           // notify.cc
void ResolveTemplate(const ResolveOptions& options, Draft* draft);          // template_settings.cc

// The value of a list; empty where there is none.
std::vector<std::string> ListOf(const Draft& draft, std::string_view key);  // graders.cc
// Checks the metrics that a key names, and the pattern of one of them.
struct GraderKeys {
  std::string_view metrics, pattern;
};
void CheckGraders(Draft* draft, const GraderKeys& keys);  // graders.cc

// Checks the programs that grade answers, a table each.
void CheckGraderPrograms(std::string_view key, Draft* draft);  // graders.cc

// JobSpec::token_ranks of the draft.
int64_t TokenRanks(const Draft& draft);  // pipeline.cc

// The override that contradicts the stage of a DeepSpeed JSON; empty: none.
std::string_view OverrideOfStage(const Draft& draft);  // sharding.cc

// The sharding that the resolved keys ask for; kDdp where there is nothing to share.
Sharding ShardingOf(const Draft& draft);  // sharding.cc

}  // namespace sft::spec
