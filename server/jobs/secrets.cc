#include "server/jobs/secrets.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/io/file.h"
#include "server/state/names.h"

namespace sft::server {
namespace {

constexpr size_t kLongestName = 40;

// A part of a path.
bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

}  // namespace

absl::StatusOr<std::vector<std::string>> Secrets::Names(const std::string& project) const {
  if (dir_.empty() || !IsValidLabel(project)) return std::vector<std::string>();
  absl::StatusOr<std::vector<std::string>> names = io::ListDir(dir_ + "/" + project);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  SFT_RETURN_IF_ERROR(names.status());
  // What a write left that was cut off has a longer name.
  std::erase_if(*names, [](const std::string& name) { return !IsName(name); });
  std::ranges::sort(*names);
  return names;
}

absl::StatusOr<std::string> Secrets::Get(const std::string& project,
                                         const std::string& name) const {
  const absl::Status none =
      NotFound(fmt::format("project {} has no secret {}: `sftctl admin project set {} --secret "
                           "{}=FILE` gives it one",
                           project, name, project, name));
  if (dir_.empty() || !IsValidLabel(project) || !IsName(name)) return none;
  auto value = io::ReadFile(PathOf(project, name), static_cast<int64_t>(kMostBytes));
  if (absl::IsNotFound(value.status())) return none;
  if (value.ok()) return value;
  return Internal(fmt::format("the secret {} of project {} cannot be read: {}", name, project,
                              Message(value.status())));
}

absl::Status Secrets::Check(std::string_view name, std::string_view value) {
  if (!IsName(name)) {
    return InvalidArgument(fmt::format(
        "a secret's name is of a-z, 0-9 and _, of at most {} characters", kLongestName));
  }
  if (!value.empty() && value.size() < kFewestBytes) {
    return InvalidArgument(
        fmt::format("what was given for {} has {} characters: a key has at least {}", name,
                    value.size(), kFewestBytes));
  }
  const bool plain = std::ranges::all_of(value, [](char c) { return c > ' ' && c < 127; });
  if (plain && value.size() <= kMostBytes) return absl::OkStatus();
  return InvalidArgument(fmt::format(
      "what was given for {} is no key: it has no spaces and at most {} bytes", name, kMostBytes));
}

absl::Status Secrets::Set(const std::string& project, const std::string& name,
                          const std::string& value) {
  SFT_RETURN_IF_ERROR(Check(name, value));
  if (dir_.empty()) return FailedPrecondition("this server keeps no secrets");
  if (!IsValidLabel(project)) return InvalidArgument("the project has no name");
  const std::string path = PathOf(project, name);
  if (value.empty()) return io::RemoveAll(path);
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, Names(project));
  if (names.size() >= kMostOfProject && std::ranges::find(names, name) == names.end()) {
    return ResourceExhausted(
        fmt::format("project {} has {} secrets, and no more are kept", project, names.size()));
  }
  SFT_RETURN_IF_ERROR(io::MakeDirs(dir_ + "/" + project));
  return io::WriteFileAtomic(path, value, io::kPrivateMode);
}

}  // namespace sft::server
