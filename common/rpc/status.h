#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <vector>

#include "common/base/status.h"

// absl::Status inside a process, grpc::Status with google.rpc details between processes.

namespace sft::rpc {

// One bad key of a job file.
struct FieldViolation {
  std::string field;        // "hyperparameters.n_epochs"
  std::string description;  // "line 12: must be > 0, for example 3"
};

// The payloads of a status, messages of google.rpc by their type, become its details.
grpc::Status ToGrpc(const absl::Status& status);
// The message is the peer's; UNAVAILABLE and DEADLINE_EXCEEDED of the transport keep theirs.
absl::Status FromGrpc(const grpc::Status& status);

// INVALID_ARGUMENT with a BadRequest payload.
absl::Status BadRequest(const std::string& message, const std::vector<FieldViolation>& violations);
// The violations a status carries; empty if none.
std::vector<FieldViolation> ViolationsOf(const grpc::Status& status);

// `status` with an ErrorInfo payload of this reason ("FILE_NOT_UPLOADED") and domain "sft".
absl::Status WithReason(absl::Status status, const std::string& reason);
// The reason of the ErrorInfo a status carries; empty if none.
std::string ReasonOf(const grpc::Status& status);

}  // namespace sft::rpc
