// The steps of admission: who calls, and whether it may do this with what its request names.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "server/door/call_context.h"
#include "server/door/fields.h"
#include "server/state/names.h"
#include "server/store/jobs.h"
#include "server/store/named_files.h"
#include "server/store/storage.h"
#include "server/store/tenancy.h"

namespace sft::server {
namespace {

// The command that gives a role beside those that somebody has: `user set` replaces all of them.
std::string CommandForRole(const Principal& principal, Role role, const std::string& project) {
  constexpr size_t kMostNamed = 20;
  std::map<std::string, Role> roles = principal.roles;
  if (roles.size() >= kMostNamed) {
    return fmt::format(
        "`sftctl admin user set {} --project {}={}` with all of its other roles "
        "(`sftctl admin user list`)",
        principal.Title(), project, ToString(role));
  }
  roles[project] = role;
  std::string command = fmt::format("`sftctl admin user set {}", principal.Title());
  for (const auto& [name, has] : roles) {
    if (has != Role::kNone) command += fmt::format(" --project {}={}", name, ToString(has));
  }
  return command + "`";
}

absl::Status NeedsRole(const Principal& principal, Role needed, const std::string& project) {
  const Role has = project.empty() ? principal.Best() : principal.RoleIn(project);
  const std::string where = project.empty() ? "any project" : "project " + project;
  if (needed == Role::kAdmin) {
    return PermissionDenied(
        fmt::format("{} is no admin, and only an admin may do this", principal.Title()));
  }
  // Whoever has a role in one project alone means that one.
  const std::string meant = IsValidLabel(project)         ? project
                            : principal.roles.size() == 1 ? principal.roles.begin()->first
                                                          : "PROJECT";
  const std::string command = CommandForRole(principal, needed, meant);
  if (has == Role::kNone) {
    return PermissionDenied(fmt::format("{} has no role in {}: an admin gives one with {}",
                                        principal.Title(), where, command));
  }
  return PermissionDenied(
      fmt::format("{} is {} in {}, and this needs {}: an admin gives it with {}", principal.Title(),
                  ToString(has), where, ToString(needed), command));
}

}  // namespace

absl::Status CallContext::Identify(const std::string& project) {
  if (rule_.caller == Caller::kAnybody) return absl::OkStatus();
  absl::StatusOr<Principal> principal = gate_.Authenticate(origin_);
  if (!principal.ok()) return principal.status();
  caller_ = *std::move(principal);
  const Caller wanted = rule_.caller;
  using Kind = Principal::Kind;
  const bool as_node = caller_.kind == Kind::kNode || caller_.local;
  const bool fits = (wanted == Caller::kUser && caller_.kind == Kind::kUser) ||
                    (wanted == Caller::kNode && as_node) ||
                    (wanted == Caller::kEither && caller_.kind != Kind::kJoiner) ||
                    (wanted == Caller::kJoiner && caller_.kind == Kind::kJoiner);
  if (!fits && wanted == Caller::kJoiner) {
    return PermissionDenied("a node joins with a join token (sft-worker --join-token-file)");
  }
  if (!fits) {
    return PermissionDenied(fmt::format("{} may not call {}", caller_.Title(), rule_.method));
  }
  if (caller_.kind == Kind::kUser && caller_.Best() < rule_.role) {
    return NeedsRole(caller_, rule_.role, IsValidLabel(project) ? project : "");
  }
  return absl::OkStatus();
}

absl::Status CallContext::CountStream() {
  // The local user is everybody on the machine.
  const std::string who = caller_.Title();
  SFT_RETURN_IF_ERROR(gate_.BeginStream(
      who, caller_.local ? Gate::kMaxStreams : Gate::kMaxStreamsOfOne, rule_.method));
  stream_of_ = who;
  return absl::OkStatus();
}

// A data set belongs to each project that has uploaded it.
absl::Status CallContext::AdmitDataset(const std::string& sha256) const {
  const Principal& who = caller_;
  absl::Status refusal = store::NoDataset(sha256);
  const absl::Status found = gate_.store().Read([&](Database& db) -> absl::Status {
    for (const auto& [project, role] : who.roles) {
      SFT_ASSIGN_OR_RETURN(const bool owns, store::OwnsDataset(db, project, sha256));
      if (!owns || role == Role::kNone) continue;
      refusal = role < rule_.role ? NeedsRole(who, rule_.role, project) : absl::OkStatus();
      if (refusal.ok()) break;
    }
    return absl::OkStatus();
  });
  return found.ok() ? refusal : found;
}

absl::Status CallContext::AdmitNamed(const std::string& name) {
  // As a resource is named, and as what is stored is.
  constexpr std::string_view kArtifacts = "artifacts/", kFiles = "files/",
                             kArtifact = "artifact:", kDataset = "dataset:", kBackup = "backup:";
  const Principal& who = caller_;
  named_ = name;
  if (who.admin) return absl::OkStatus();
  if (name.starts_with(kBackup)) return NeedsRole(who, Role::kAdmin, "");
  if (name.starts_with(kDataset)) return AdmitDataset(name.substr(kDataset.size()));
  std::string& project = project_;
  absl::Status hidden;
  const absl::Status found = gate_.store().Read([&](Database& db) -> absl::Status {
    const bool stored = name.starts_with(kArtifact);
    if (stored || name.starts_with(kArtifacts)) {
      const std::string id = name.substr(stored ? kArtifact.size() : kArtifacts.size());
      hidden = store::NoArtifact(id);
      SFT_ASSIGN_OR_RETURN(project, store::ProjectOfArtifact(db, id));
      return absl::OkStatus();
    }
    if (name.starts_with(kFiles)) {
      const std::string id = name.substr(kFiles.size());
      hidden = store::NoFile(id);
      SFT_ASSIGN_OR_RETURN(const FileRecord file, store::GetFile(db, id));
      project = file.project;
      return absl::OkStatus();
    }
    SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(name));
    hidden = store::NoJob(ref.id);
    SFT_ASSIGN_OR_RETURN(project, store::ProjectOfJob(db, ref.id));
    return absl::OkStatus();
  });
  SFT_RETURN_IF_ERROR(found);
  if (who.RoleIn(project) == Role::kNone) return hidden;
  if (who.RoleIn(project) < rule_.role) return NeedsRole(who, rule_.role, project);
  return absl::OkStatus();
}

absl::Status CallContext::AdmitProject(const std::string& named) {
  const Principal& who = caller_;
  const Role needed = rule_.role;
  if (who.kind == Principal::Kind::kNode) return absl::OkStatus();
  if (!named.empty() && !IsValidLabel(named)) {
    return InvalidArgument(fmt::format("project \"{}\" is not a name", named.substr(0, 80)));
  }
  project_ = named;
  if (named.empty() && who.RoleIn(kDefaultProject) >= needed) project_ = kDefaultProject;
  if (project_.empty()) {
    std::vector<std::string> fit;
    for (const auto& [project, role] : who.roles) {
      if (role >= needed) fit.push_back(project);
    }
    if (fit.size() > 1) {
      return InvalidArgument(
          fmt::format("{} may do this in several projects: name one of {} "
                      "(--project)",
                      who.Title(), fmt::join(fit, ", ")));
    }
    if (fit.size() == 1) project_ = fit.front();
  }
  if (who.RoleIn(project_) >= needed) return absl::OkStatus();
  return NeedsRole(who, needed, project_);
}

absl::Status CallContext::AdmitRequest(const google::protobuf::Message& request) {
  const Principal& who = caller_;
  if (who.kind == Principal::Kind::kNode) {
    const std::string node = StringField(request, "node");
    if (!node.empty() && node != who.name) {
      return PermissionDenied(
          fmt::format("{} may not speak for node {}", who.Title(), node.substr(0, 80)));
    }
  }
  switch (rule_.place) {
    case Place::kNamed:
      return AdmitNamed(StringField(request, "name"));
    case Place::kProject:
      return AdmitProject(StringField(request, "project"));
    case Place::kOwn: {
      const std::string project = StringField(request, "project");
      if (project.empty() || who.kind == Principal::Kind::kNode ||
          who.RoleIn(project) >= rule_.role) {
        return absl::OkStatus();
      }
      return NeedsRole(who, rule_.role, project);
    }
    default:
      return absl::OkStatus();
  }
}

absl::Status CallContext::AdmitBlob(const std::string& sha256) const {
  const Principal& who = caller_;
  if (who.admin) return absl::OkStatus();
  bool allowed = false;
  const absl::Status read = gate_.store().Read([&](Database& db) -> absl::Status {
    if (who.kind == Principal::Kind::kNode) {
      SFT_ASSIGN_OR_RETURN(allowed, store::NodeNeedsBlob(db, who.name, sha256));
      return absl::OkStatus();
    }
    for (const auto& [project, role] : who.roles) {
      if (allowed) break;
      SFT_ASSIGN_OR_RETURN(allowed, store::OwnsDataset(db, project, sha256));
    }
    return absl::OkStatus();
  });
  if (!read.ok() || allowed) return read;
  return NotFound(fmt::format("no blob {}: it was not uploaded", sha256.substr(0, 80)));
}

absl::Status CallContext::AdmitStill() {
  SFT_RETURN_IF_ERROR(Identify());
  if (caller_.kind != Principal::Kind::kUser || caller_.admin) return absl::OkStatus();
  if (project_.empty()) {
    // Who was an admin has seen it whatever its project.
    return named_.empty() ? absl::OkStatus() : AdmitNamed(named_);
  }
  if (caller_.RoleIn(project_) >= rule_.role) return absl::OkStatus();
  return NeedsRole(caller_, rule_.role, project_);
}

}  // namespace sft::server
