#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/spec/job_spec.h"

namespace sft::spec {

enum class OverrideKind {
  kEnvironment,  // key is a variable's name; one that names no key is reported as a warning
  kFlag,         // key is a dotted key or alias, set by a flag of the client
  kSet,          // the same, typed after --set
};

// One value that the submitter gave outside the file. A later override of a key wins over an
// earlier one, and all win over the file.
struct Override {
  std::string key;
  std::string value;   // text as typed
  std::string origin;  // shown with the value: "--set", "--dataset", "TRAIN_BATCH_SIZE"
  OverrideKind kind = OverrideKind::kSet;
  bool taken_before = false;  // as in ResolveOptions
};

// An error (in problems) or a remark (in warnings) about a key.
struct Problem {
  std::string key;  // canonical key, or the text as written for unknown ones; empty: the whole file
  int line = 0;     // line of the job file; 0: none
  std::string message;  // the error, and what would be right
};

// A value and where it comes from.
struct ResolvedValue {
  std::string key;     // canonical
  std::string text;    // as one would type it
  std::string origin;  // "default", "job.toml:12", an override's origin, "derived: <from what>"
  bool overridden = false;  // given by an override
  // The key that a person wrote to get the value, named in errors about it, and its line (0: none).
  // It is another key where this one was derived from it or copied.
  std::string written_as;
  int line = 0;
};

// The result of Resolve.
struct Resolution {
  JobSpec spec;                       // what is known; complete only if ok()
  std::vector<ResolvedValue> values;  // in the order of Fields()
  std::vector<Problem> problems;
  std::vector<Problem> warnings;
  bool ok() const { return problems.empty(); }
};

// Facts about the server that Resolve uses.
struct ResolveOptions {
  // Used when neither the file nor an override names a type or a variant, on servers that have only
  // one; if empty, the type is required.
  std::string default_gpu_type;
  // The file was accepted as a job once, by this version or an earlier one: where only newer rules
  // refuse it, it is read as it was then, or warned about.
  bool taken_before = false;
  // The day that templates print (data.template_date) where the job gives none, and whose it is,
  // for the value's origin. Empty: the key stays without a value.
  std::string day;
  std::string day_of = "the day of the submission";
};

// Rewrites a value that was accepted once so that newer rules accept it: a duration gets its unit,
// and invisible characters become "_". `key` is canonical; values of other keys stay as they are.
std::string AsTakenNow(std::string_view key, std::string text);

// Reads a job file, applies the overrides, checks everything and does the batch arithmetic. Pure:
// it opens no file and reads no environment. Finds all problems at once, in the order of their
// lines. `file_name` is shown in origins and gives job.name its default.
Resolution Resolve(std::string_view text, std::string_view file_name,
                   const std::vector<Override>& overrides, const ResolveOptions& options = {});

// A key of a spec that names a file of the submitter's, to be uploaded before the job runs.
struct NeededFile {
  std::string key;   // "job.data", "data.val" or a further file's (PartKey)
  std::string path;  // as written
  // A relative path counts from the job file's folder, or from the submitter's working directory
  // when an override gave it.
  bool from_override = false;
  int line = 0;  // line of the job file; 0: an override gave it
};
// Works on a resolution with problems too, so that problems with the files can be reported together
// with them.
std::vector<NeededFile> NeededFiles(const Resolution& resolution);

// The path after the prefix of "node:/path", which names a file that every node sees; empty for
// other values.
std::string_view NodePath(std::string_view value);

}  // namespace sft::spec
