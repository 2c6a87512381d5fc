#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <vector>

#include "common/base/status.h"

// Conversion between absl::Status, used inside a process, and grpc::Status with google.rpc details,
// used between processes.

namespace sft::rpc {

// An error in one key of a job file.
struct FieldViolation {
  std::string field;        // "hyperparameters.n_epochs"
  std::string description;  // "line 12: must be > 0, for example 3"
};

// Payloads of the status that are google.rpc messages, keyed by type, become its details.
grpc::Status ToGrpc(const absl::Status& status);
// Keeps the peer's message, and the UNAVAILABLE and DEADLINE_EXCEEDED of the transport.
absl::Status FromGrpc(const grpc::Status& status);

// An INVALID_ARGUMENT status with a BadRequest payload.
absl::Status BadRequest(const std::string& message, const std::vector<FieldViolation>& violations);
// The violations that a status carries; empty if none.
std::vector<FieldViolation> ViolationsOf(const grpc::Status& status);

// `status` with an ErrorInfo payload of this reason ("FILE_NOT_UPLOADED") and domain "sft".
absl::Status WithReason(absl::Status status, const std::string& reason);
// The ErrorInfo reason that a status carries; empty if none.
std::string ReasonOf(const grpc::Status& status);

}  // namespace sft::rpc
