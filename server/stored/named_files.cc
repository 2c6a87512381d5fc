#include "server/stored/named_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/ids.h"
#include "common/base/utf8.h"
#include "server/core/convert.h"
#include "server/state/names.h"
#include "server/store/named_files.h"
#include "server/store/storage.h"
#include "server/store/tenancy.h"

namespace sft::server {
namespace {

constexpr size_t kMostNameBytes = 255;
constexpr int kJobsShown = 3;
constexpr std::string_view kFiles = "files/", kPurpose = "fine-tune";

std::string IdOf(const std::string& name) {
  return name.starts_with(kFiles) ? name.substr(kFiles.size()) : name;
}

v1::File ToProto(const FileRecord& file) {
  v1::File proto;
  proto.set_name(FileName(file.id));
  proto.set_project(file.project);
  proto.set_owner(file.owner);
  proto.set_sha256(file.sha256);
  proto.set_size(file.size);
  proto.set_rows(file.rows);
  proto.set_file_name(file.name);
  proto.set_purpose(file.purpose);
  *proto.mutable_create_time() = ToTimestamp(file.created_us);
  return proto;
}

absl::Status Check(const v1::CreateFileRequest& request) {
  if (request.purpose() != kPurpose) {
    return InvalidArgument(fmt::format("purpose \"{}\": files have the purpose \"{}\"",
                                       WithoutHidden(request.purpose().substr(0, 80)), kPurpose));
  }
  const std::string& name = request.file_name();
  if (name.empty() || name.size() > kMostNameBytes) {
    return InvalidArgument(
        fmt::format("file_name: has {} bytes; it has 1 to {}", name.size(), kMostNameBytes));
  }
  return absl::OkStatus();
}

// That no job which has not ended goes without it: that is, where this is its last file.
absl::Status CheckDeletable(Database& db, const FileRecord& file) {
  SFT_ASSIGN_OR_RETURN(const int64_t files, store::CountFilesOf(db, file.project, file.sha256));
  if (files > 1) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const store::DatasetJobs jobs,
                       store::JobsWithDataset(db, file.sha256, file.project, kJobsShown));
  if (jobs.live == 0) return absl::OkStatus();
  return FailedPrecondition(
      fmt::format("file {} stays: jobs that have not ended need it ({}); cancel them, or wait",
                  file.id, fmt::join(jobs.ids, ", ")));
}

}  // namespace

absl::StatusOr<v1::File> NamedFiles::Create(const v1::CreateFileRequest& request,
                                            const std::string& project, const Actor& actor) {
  SFT_RETURN_IF_ERROR(Check(request));
  FileRecord file;
  file.id = RandomId("file");
  file.project = project;
  file.owner = actor.name;
  file.sha256 = request.sha256();
  file.name = request.file_name();
  file.purpose = request.purpose();
  file.created_us = UnixMicros(clock_.Wall());
  FileRecord made;
  const MutexLock lock(removing_);
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) -> absl::Status {
        SFT_ASSIGN_OR_RETURN(const bool owns, store::OwnsDataset(db, project, file.sha256));
        if (!owns) {
          return FailedPrecondition(
              fmt::format("project {} has no data set {}: upload it first (UploadBlob)", project,
                          file.sha256.substr(0, 64)));
        }
        std::optional<FileRecord> same;
        if (request.again()) {
          const int64_t since_us = UnixMicros(clock_.Wall() - Nanos(kSameRequest));
          SFT_ASSIGN_OR_RETURN(same, store::FindSameFile(db, file, since_us));
        }
        if (!same.has_value()) SFT_RETURN_IF_ERROR(store::InsertFile(db, file));
        SFT_ASSIGN_OR_RETURN(made, store::GetFile(db, same.has_value() ? same->id : file.id));
        if (actor.audit != nullptr) actor.audit->record.object = FileName(made.id);
        return absl::OkStatus();
      },
      actor.audit));
  return ToProto(made);
}

absl::StatusOr<v1::File> NamedFiles::Get(const std::string& name) {
  FileRecord file;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(file, store::GetFile(db, IdOf(name)));
    return absl::OkStatus();
  }));
  return ToProto(file);
}

absl::StatusOr<NamedFiles::Page> NamedFiles::List(const v1::ListFilesRequest& request,
                                                  int64_t after, int limit,
                                                  std::optional<std::vector<std::string>> visible) {
  store::FileFilter filter{.project = request.project(),
                           .purpose = request.purpose(),
                           .visible = std::move(visible),
                           .oldest_first = request.oldest_first(),
                           .after = after,
                           .limit = limit};
  std::vector<FileRecord> files;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    if (!request.after().empty()) {
      const std::string id = IdOf(request.after());
      SFT_ASSIGN_OR_RETURN(const FileRecord place, store::GetFile(db, id));
      const auto& seen = filter.visible;
      if (seen.has_value() && std::ranges::find(*seen, place.project) == seen->end()) {
        return store::NoFile(id);
      }
      filter.after = place.sequence;
    }
    SFT_ASSIGN_OR_RETURN(files, store::ListFiles(db, filter));
    return absl::OkStatus();
  }));
  v1::ListFilesResponse response;
  for (const FileRecord& file : files) *response.add_files() = ToProto(file);
  return Page{std::move(response),
              static_cast<int>(files.size()) == limit ? files.back().sequence : 0};
}

absl::Status NamedFiles::Delete(const std::string& name, const Actor& actor) {
  FileRecord file;
  bool last = false;
  const MutexLock lock(removing_);
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) -> absl::Status {
        SFT_ASSIGN_OR_RETURN(file, store::GetFile(db, IdOf(name)));
        SFT_RETURN_IF_ERROR(CheckDeletable(db, file));
        SFT_RETURN_IF_ERROR(store::DeleteFile(db, file.id));
        SFT_ASSIGN_OR_RETURN(const int64_t left,
                             store::CountFilesOf(db, file.project, file.sha256));
        last = left == 0;
        return absl::OkStatus();
      },
      actor.audit));
  if (!last) return absl::OkStatus();
  v1::RemoveStoredRequest remove;
  remove.set_name("dataset:" + file.sha256);
  const auto removed =
      removal_.Remove(remove, {actor.name, nullptr}, std::vector<std::string>{file.project});
  // Ended jobs keep it, which may be resumed; it goes with them, or by its age.
  const bool kept = absl::IsFailedPrecondition(removed.status());
  return kept || absl::IsNotFound(removed.status()) ? absl::OkStatus() : removed.status();
}

}  // namespace sft::server
