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
                                  kGpusPerNodeKey = "compute.gpus_per_node";

// Who gave a value; a higher one wins.
enum class Strength { kDefault, kFile, kEnvironment, kFlag, kSet };

// One value of a draft, and who gave it where.
struct DraftEntry {
  Value value;
  std::string origin;
  int line = 0;
  Strength strength = Strength::kDefault;
  bool attached = false;  // a DeepSpeed JSON that came with the file says it; strength kFile
  // The key that gave the value where it is another one: a copy in [data.topology], or the key that
  // a derived value follows from.
  std::string given_as;
  bool taken_before = false;  // in a job, so that younger rules do not refuse it
};

// The values given so far and what is wrong with them, while a job file is resolved. The
// derivations (method, topology, batch) read and complete it; all keys are canonical and must exist
// in the table.
class Draft {
 public:
  // As of ResolveOptions.
  explicit Draft(bool taken_before = false) : taken_before_(taken_before) {}
  bool taken_before() const { return taken_before_; }
  // Records a value of the file; two spellings of one key must agree.
  void SetFromFile(const Field& field, Value value, std::string_view file_name, int line);
  // A value of the DeepSpeed JSON, there called `name`; it must agree with the file.
  void SetAttached(const Field& field, Value value, std::string_view name);
  // The same value in other words: who gave it where stands.
  void Rewrite(std::string_view key, Value value);
  void SetOverride(const Field& field, Value value, const Override& override_);
  // Takes the value of another key, with where it comes from: that key is blamed for it.
  void TakeFrom(std::string_view key, std::string_view source);
  // A value that follows from others; `from` says from what ("compute.variant").
  void Derive(std::string_view key, Value value, std::string_view from);
  // Fills in the defaults of the table for what is still missing.
  void FillDefaults();

  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  // Given by the file or an override, so neither derived nor a default.
  bool Given(std::string_view key) const { return StrengthOf(key) >= Strength::kFile; }
  bool Overridden(std::string_view key) const { return StrengthOf(key) > Strength::kFile; }
  bool Attached(std::string_view key) const { return Has(key) && Find(key)->attached; }
  Strength StrengthOf(std::string_view key) const;
  // Removes what only the file says; true when nothing is left.
  bool DropFromFile(std::string_view key);

  const DraftEntry* Find(std::string_view key) const;
  int64_t Int(std::string_view key) const;
  bool Bool(std::string_view key) const;  // false when missing
  std::string String(std::string_view key) const;
  double Float(std::string_view key) const;

  // The key that a person wrote to get this value: `key` itself, or the copy that stands for it.
  std::string_view WrittenAs(std::string_view key) const;
  // Adds a problem or a warning at the place that gave the key, under the key written there.
  void AddProblem(std::string_view key, std::string message);
  // Of a rule that is younger than some jobs: for one that was taken before, a warning.
  void AddLater(std::string_view key, std::string message);
  void AddProblemAt(std::string_view key, int line, std::string message);
  // A name that is none: `what` ("unknown key"), and what may have been meant. That is looked up
  // for the first hundred alone, since each is compared with all names.
  void AddUnknown(std::string_view name, int line, bool is_table, std::string_view what);
  void AddWarning(std::string_view key, std::string message);
  // "compute.gpu_count = 4 (--set)": a value with its origin, for messages.
  std::string Quote(std::string_view key) const;
  // True when one of the keys has a problem, so that checks which build on it would only add noise.
  bool Faulty(std::initializer_list<std::string_view> keys) const;

  std::vector<ResolvedValue> Values() const;
  std::vector<Problem> TakeProblems();
  std::vector<Problem> TakeWarnings();

 private:
  const bool taken_before_;
  std::map<std::string, DraftEntry, std::less<>> entries_;
  std::set<std::string, std::less<>> faulty_;  // canonical keys and those written
  // The first so many are told, with how many more there are.
  static constexpr int kMostProblems = 1000, kMostWarnings = 200;
  std::vector<Problem> problems_;
  std::vector<Problem> warnings_;
  int problem_count_ = 0, warning_count_ = 0;
  int unknown_ = 0;
};

// The steps of Resolve after parsing, in this order. Each reports into the draft.
void ApplyOverrides(const std::vector<Override>& overrides, Draft* draft);  // overrides.cc
void ApplyDeepspeed(Draft* draft);                                          // deepspeed.cc
void ResolveMethod(Draft* draft);                                           // method.cc
void ResolveTopology(const ResolveOptions& options, Draft* draft);          // topology.cc
void ResolveBatch(Draft* draft);                                            // batch.cc
void ResolveSharding(Draft* draft);                                         // sharding.cc
void ResolvePrecision(Draft* draft);                                        // method.cc
void ResolveValidation(Draft* draft);                                       // method.cc
void ResolveSaving(Draft* draft);                                           // method.cc
void ResolveScheduling(Draft* draft);                                       // scheduling.cc

// The override that decides against the stage of a DeepSpeed JSON; empty: none.
std::string_view OverrideOfStage(const Draft& draft);  // sharding.cc

// What the resolved keys shard; with nothing to share it is kDdp.
Sharding ShardingOf(const Draft& draft);  // sharding.cc

}  // namespace sft::spec
