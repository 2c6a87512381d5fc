#include "common/rpc/status.h"

#include <absl/strings/cord.h>
#include <absl/strings/match.h>
#include <fmt/format.h>
#include <google/protobuf/any.pb.h>
#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>

#include "common/base/utf8.h"

namespace sft::rpc {
namespace {

google::rpc::Status DetailsOf(const grpc::Status& status) {
  google::rpc::Status details;
  // Details that cannot be parsed are foreign and treated as none.
  if (!details.ParseFromString(status.error_details())) details.Clear();
  return details;
}

// Limits of a status. It travels in metadata, of which a peer accepts 8 KiB by default: a longer
// one would arrive as another error, about metadata. Together these stay below that, with the
// details in base64 and the message repeated in them.
constexpr size_t kMaxMessage = 4000, kMaxMessageWithDetail = 1200, kMaxViolations = 2500;

// The beginning of a text, `most` bytes long as encoded in a header: a character outside ASCII
// takes three. A message that is not UTF-8 would not arrive at all.
std::string Cut(std::string_view bytes_of_text, size_t most) {
  const std::string whole = ToUtf8(bytes_of_text.substr(0, most));
  const std::string_view text = whole;
  size_t bytes = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t at = text.size() - rest.size();
    bool valid = false;
    TakeCharacter(rest, valid);
    const size_t taken = text.size() - rest.size() - at;
    const bool plain = taken == 1 && text[at] >= ' ' && text[at] < 0x7f && text[at] != '%';
    bytes += plain ? 1 : 3 * taken;
    if (bytes > most) return std::string(text.substr(0, at)) + "...";
  }
  return bytes_of_text.size() > most ? whole + "..." : whole;
}

void AddPayload(absl::Status& status, const google::protobuf::Message& detail) {
  google::protobuf::Any any;
  any.PackFrom(detail);
  status.SetPayload(any.type_url(), absl::Cord(any.value()));
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  // Both enumerations use the numbers of google.rpc.Code.
  const auto code = static_cast<grpc::StatusCode>(status.code());
  google::rpc::Status details;
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& value) {
    // Other payloads are private to this process.
    if (!absl::StartsWith(type, "type.googleapis.com/google.rpc.")) return;
    google::protobuf::Any& any = *details.add_details();
    any.set_type_url(std::string(type));
    any.set_value(std::string(value));
  });
  if (details.details_size() == 0) return {code, Cut(Message(status), kMaxMessage)};
  const std::string message = Cut(Message(status), kMaxMessageWithDetail);
  details.set_code(code);
  details.set_message(message);
  return {code, message, details.SerializeAsString()};
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::Status BadRequest(const std::string& message, const std::vector<FieldViolation>& violations) {
  google::rpc::BadRequest detail;
  constexpr size_t kMaxField = 200, kMaxDescription = 600;
  for (size_t i = 0; i < violations.size(); ++i) {
    auto* added = detail.add_field_violations();
    added->set_field(Cut(violations[i].field, kMaxField));
    added->set_description(Cut(violations[i].description, kMaxDescription));
    if (detail.ByteSizeLong() <= kMaxViolations) continue;
    added->clear_field();
    added->set_description(
        fmt::format("{} more; a dry run shows all of them", violations.size() - i));
    break;
  }
  absl::Status status = InvalidArgument(message);
  AddPayload(status, detail);
  return status;
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

absl::Status WithReason(absl::Status status, const std::string& reason) {
  google::rpc::ErrorInfo detail;
  detail.set_reason(reason);
  detail.set_domain("sft");
  AddPayload(status, detail);
  return status;
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
