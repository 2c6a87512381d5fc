#include "server/services/file_service.h"

#include "server/door/page_token.h"
#include "server/store/jobs.h"

namespace sft::server {

void FileService::AddTo(Methods& methods) {
  using enum Caller;
  using enum Place;
  using enum Role;
  using Self = FileService;
  methods.Unary({"FileService.CreateFile", kUser, kSubmitter, kProject, Audit::kChange}, this,
                &Self::CreateFile);
  methods.Unary({"FileService.GetFile", kUser, kViewer, kNamed}, this, &Self::GetFile);
  methods.Unary({"FileService.ListFiles", kUser, kViewer, kOwn}, this, &Self::ListFiles);
  methods.Unary({"FileService.DeleteFile", kUser, kSubmitter, kNamed, Audit::kChange}, this,
                &Self::DeleteFile);
}

absl::StatusOr<v1::File> FileService::CreateFile(CallContext& call,
                                                 const v1::CreateFileRequest& request) {
  return files_.Create(request, call.project(), call.actor());
}

absl::StatusOr<v1::File> FileService::GetFile(CallContext&, const v1::GetFileRequest& request) {
  return files_.Get(request.name());
}

absl::StatusOr<v1::ListFilesResponse> FileService::ListFiles(CallContext& call,
                                                             const v1::ListFilesRequest& request) {
  SFT_ASSIGN_OR_RETURN(const int limit, PageSize(request.page_size(), store::kMaxPage));
  SFT_ASSIGN_OR_RETURN(const int64_t after, FromToken(request.page_token()));
  if (after > 0 && !request.after().empty()) {
    return InvalidArgument("after: a page begins behind a file or at a page_token, not both");
  }
  SFT_ASSIGN_OR_RETURN(NamedFiles::Page page, files_.List(request, after, limit, call.Visible()));
  page.files.set_next_page_token(ToToken(page.next));
  return std::move(page.files);
}

absl::StatusOr<v1::DeleteFileResponse> FileService::DeleteFile(
    CallContext& call, const v1::DeleteFileRequest& request) {
  SFT_RETURN_IF_ERROR(files_.Delete(request.name(), call.actor()));
  return v1::DeleteFileResponse();
}

}  // namespace sft::server
