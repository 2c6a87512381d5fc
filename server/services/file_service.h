#pragma once

#include "server/door/methods.h"
#include "server/stored/named_files.h"
#include "sft/v1/file_service.pb.h"

namespace sft::server {

// FileService: data sets by ids and names of their users.
class FileService final {
 public:
  // Borrowed.
  explicit FileService(NamedFiles& files) : files_(files) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);

  absl::StatusOr<v1::File> CreateFile(CallContext& call, const v1::CreateFileRequest& request);
  absl::StatusOr<v1::File> GetFile(CallContext& call, const v1::GetFileRequest& request);
  absl::StatusOr<v1::ListFilesResponse> ListFiles(CallContext& call,
                                                  const v1::ListFilesRequest& request);
  absl::StatusOr<v1::DeleteFileResponse> DeleteFile(CallContext& call,
                                                    const v1::DeleteFileRequest& request);

 private:
  NamedFiles& files_;
};

}  // namespace sft::server
