#pragma once

#include <absl/status/statusor.h>

#include <filesystem>
#include <string>

#include "common/base/status.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "sft/v1/job_service.pb.h"

namespace sft {

// What sftctl sends of a job file whose data was uploaded before; no request id.
inline absl::StatusOr<v1::SubmitJobRequest> MakeSubmitRequest(const std::string& job_file,
                                                              const std::string& data_file) {
  v1::SubmitJobRequest request;
  SFT_ASSIGN_OR_RETURN(*request.mutable_source_text(), io::ReadFile(job_file));
  SFT_ASSIGN_OR_RETURN(const io::FileHash data, io::HashFile(data_file));
  request.set_file_name(std::filesystem::path(job_file).filename().string());
  v1::JobFile& sent = *request.add_files();
  sent.set_key("job.data");
  sent.set_sha256(data.sha256);
  sent.set_size(data.size);
  sent.set_client_path(data_file);
  return request;
}

}  // namespace sft
