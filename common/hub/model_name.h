#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sft::hub {

// A model as a job file names it: "org/name" or "org/name@revision".
struct ModelName {
  std::string id;        // "org/name"
  std::string revision;  // a branch, a tag or a commit; empty: not given

  std::string Text() const { return revision.empty() ? id : id + "@" + revision; }
};

// Nothing for what cannot be on a hub: paths, names without an organisation.
std::optional<ModelName> ParseModelName(std::string_view text);

// True for the 40 digits of a commit.
bool IsCommit(std::string_view text);

// Whether two names as jobs have them may mean the same files: equal texts, or one model of which
// they do not name two different commits.
bool MayBeSame(std::string_view a, std::string_view b);

// The names of hub caches: "models--org--name", and the commit of a path whose last parts are
// "snapshots/COMMIT" (empty: it is no snapshot).
std::string CacheFolderOf(std::string_view id);
std::string CommitOfSnapshot(std::string_view path);

}  // namespace sft::hub
