#include "common/rpc/status.h"

#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>

namespace sft::rpc {
namespace {

google::rpc::Status DetailsOf(const grpc::Status& status) {
  google::rpc::Status details;
  // Details that cannot be parsed are somebody else's: treated as none.
  if (!details.ParseFromString(status.error_details())) details.Clear();
  return details;
}

grpc::Status WithDetail(grpc::StatusCode code, const std::string& message,
                        const google::protobuf::Message& detail) {
  google::rpc::Status details;
  details.set_code(code);
  details.set_message(message);
  details.add_details()->PackFrom(detail);
  return {code, message, details.SerializeAsString()};
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  // The numbers of both enumerations are those of google.rpc.Code.
  return {static_cast<grpc::StatusCode>(status.code()), std::string(Message(status))};
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

grpc::Status BadRequest(const std::string& message, const std::vector<FieldViolation>& violations) {
  google::rpc::BadRequest detail;
  for (const FieldViolation& violation : violations) {
    auto* added = detail.add_field_violations();
    added->set_field(violation.field);
    added->set_description(violation.description);
  }
  return WithDetail(grpc::StatusCode::INVALID_ARGUMENT, message, detail);
}

std::vector<FieldViolation> ViolationsOf(const grpc::Status& status) {
  std::vector<FieldViolation> violations;
  const google::rpc::Status details = DetailsOf(status);
  for (const auto& any : details.details()) {
    google::rpc::BadRequest detail;
    if (!any.Is<google::rpc::BadRequest>() || !any.UnpackTo(&detail)) continue;
    for (const auto& violation : detail.field_violations()) {
      violations.push_back({violation.field(), violation.description()});
    }
  }
  return violations;
}

grpc::Status WithReason(const absl::Status& status, const std::string& reason) {
  google::rpc::ErrorInfo detail;
  detail.set_reason(reason);
  detail.set_domain("sft");
  return WithDetail(static_cast<grpc::StatusCode>(status.code()), std::string(Message(status)),
                    detail);
}

std::string ReasonOf(const grpc::Status& status) {
  const google::rpc::Status details = DetailsOf(status);
  for (const auto& any : details.details()) {
    google::rpc::ErrorInfo detail;
    if (any.Is<google::rpc::ErrorInfo>() && any.UnpackTo(&detail)) return detail.reason();
  }
  return "";
}

}  // namespace sft::rpc
