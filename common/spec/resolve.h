#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/spec/job_spec.h"

namespace sft::spec {

enum class OverrideKind {
  kEnvironment,  // key is a variable's name; one that names no key is reported as a warning
  kFlag,         // key is a dotted key or alias, set by a flag of the client
  kSet,          // the same, as typed after --set
};

// One value that the submitter gave outside the file. A later override of a key wins over an
// earlier one, and each wins over the file.
struct Override {
  std::string key;
  std::string value;   // text as typed
  std::string origin;  // shown with the value: "--set", "--dataset", "TRAIN_BATCH_SIZE"
  OverrideKind kind = OverrideKind::kSet;
  bool taken_before = false;  // as of ResolveOptions
};

// One thing that is wrong (problems) or worth knowing (warnings).
struct Problem {
  std::string key;  // canonical key, or the text as written for unknown ones; empty: the whole file
  int line = 0;     // of the job file; 0: none
  std::string message;  // what is wrong and what would be right
};

// Where one value comes from.
struct ResolvedValue {
  std::string key;     // canonical
  std::string text;    // as one would type it
  std::string origin;  // "default", "job.toml:12", an override's origin, "derived: <from what>"
  bool overridden = false;  // given by an override
  // The key that a person wrote to get it, to be named when it turns out wrong, and its line (0:
  // none): another key where this one was derived from it or copied.
  std::string written_as;
  int line = 0;
};

// The answer of Resolve.
struct Resolution {
  JobSpec spec;                       // of what is known; complete only if ok()
  std::vector<ResolvedValue> values;  // in the order of Fields()
  std::vector<Problem> problems;
  std::vector<Problem> warnings;
  bool ok() const { return problems.empty(); }
};

// What Resolve may know of the server it runs on.
struct ResolveOptions {
  // Type taken when neither the file nor an override names a type or a variant, for servers that
  // have only one; empty: then the type is required.
  std::string default_gpu_type;
  // The file was taken as a job once, by this version or one before: what rules of later versions
  // alone refuse of it is read as it was then, or warned of.
  bool taken_before = false;
};

// A value that was taken once, as rules of later versions would have it: a duration with its unit,
// and "_" for what cannot be seen. `key` is canonical; others stay as they are.
std::string AsTakenNow(std::string_view key, std::string text);

// Reads a job file, applies the overrides, checks everything and does the batch arithmetic. Pure:
// no file is opened, no environment is read. All problems are found at once, in the order of their
// lines. `file_name` is shown in origins and gives job.name its default.
Resolution Resolve(std::string_view text, std::string_view file_name,
                   const std::vector<Override>& overrides, const ResolveOptions& options = {});

// The keys of a spec that name files of the submitter's, which must be uploaded before the job
// runs.
struct NeededFile {
  std::string key;   // "job.data" or "data.val"
  std::string path;  // as written
  // A relative path counts from the job file's folder, or from the submitter's working directory
  // when an override gave it.
  bool from_override = false;
  int line = 0;  // of the job file; 0: an override gave it
};
// Also of a resolution with problems, so that those of the files can be told with them.
std::vector<NeededFile> NeededFiles(const Resolution& resolution);

// "node:/path" names a file that every node sees: the path after the prefix; empty for other
// values.
std::string_view NodePath(std::string_view value);

}  // namespace sft::spec
