#include "common/hub/model_name.h"

#include <algorithm>

namespace sft::hub {
namespace {

constexpr size_t kMaxName = 200;

// As the hub has names: letters, digits, "-", "_" and ".", with no ".." and no "--".
bool IsPart(std::string_view part) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !part.empty() && part.front() != '.' && part.front() != '-' && part.back() != '.' &&
         part.back() != '-' && part.find("..") == part.npos && part.find("--") == part.npos &&
         std::all_of(part.begin(), part.end(), allowed);
}

// A revision may have slashes ("refs/pr/1"), and becomes part of paths and addresses.
bool IsRevision(std::string_view revision) {
  while (true) {
    const size_t end = std::min(revision.find('/'), revision.size());
    if (!IsPart(revision.substr(0, end))) return false;
    if (end == revision.size()) return true;
    revision.remove_prefix(end + 1);
  }
}

}  // namespace

std::optional<ModelName> ParseModelName(std::string_view text) {
  if (text.size() > kMaxName) return std::nullopt;
  const size_t at = text.find('@');
  const std::string_view id = text.substr(0, at);
  const size_t slash = id.find('/');
  if (slash == id.npos || !IsPart(id.substr(0, slash)) || !IsPart(id.substr(slash + 1))) {
    return std::nullopt;
  }
  ModelName name{std::string(id), ""};
  if (at == text.npos) return name;
  name.revision = text.substr(at + 1);
  return IsRevision(name.revision) ? std::make_optional(name) : std::nullopt;
}

bool IsCommit(std::string_view text) {
  constexpr size_t kDigits = 40;
  return text.size() == kDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string CacheFolderOf(std::string_view id) {
  std::string folder = "models--" + std::string(id);
  for (size_t at = 0; (at = folder.find('/', at)) != std::string::npos;)
    folder.replace(at, 1, "--");
  return folder;
}

std::string CommitOfSnapshot(std::string_view path) {
  const size_t last = path.rfind('/');
  if (last == path.npos || !path.substr(0, last).ends_with("/snapshots")) return "";
  const std::string_view commit = path.substr(last + 1);
  return IsCommit(commit) ? std::string(commit) : "";
}

bool MayBeSame(std::string_view a, std::string_view b) {
  if (a == b) return true;
  const auto x = ParseModelName(a), y = ParseModelName(b);
  if (!x || !y || x->id != y->id) return false;
  return !IsCommit(x->revision) || !IsCommit(y->revision) || x->revision == y->revision;
}

}  // namespace sft::hub
