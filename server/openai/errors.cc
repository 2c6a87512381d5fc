#include "server/openai/errors.h"

#include <nlohmann/json.hpp>

#include "common/base/json.h"

namespace sft::server::openai {
namespace {

constexpr char kParam[] = "openai/param";

struct Kind {
  int http_status;
  const char* type;
  const char* code;  // may be null
  int retry_after_s = 0;
};

Kind KindOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kCancelled:  // who closes half of his connection may still read
      return {400, "invalid_request_error", nullptr};
    case absl::StatusCode::kUnauthenticated:
      return {401, "authentication_error", "invalid_api_key"};
    case absl::StatusCode::kPermissionDenied:
      return {403, "permission_error", nullptr};
    // A job that has ended, or is of another kind, is no model.
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
      return {404, "invalid_request_error", "model_not_found"};
    case absl::StatusCode::kUnimplemented:
      return {405, "invalid_request_error", nullptr};
    case absl::StatusCode::kDeadlineExceeded:
      return {408, "invalid_request_error", nullptr};
    case absl::StatusCode::kOutOfRange:
      return {413, "invalid_request_error", nullptr};
    case absl::StatusCode::kResourceExhausted:
      return {429, "rate_limit_error", "rate_limit_exceeded", 2};
    case absl::StatusCode::kUnavailable:
      return {503, "service_unavailable_error", nullptr, 5};
    default:
      return {500, "server_error", nullptr};
  }
}

// Of files and jobs that train.
Kind KindOfTraining(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return {404, "invalid_request_error", "not_found"};
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return {409, "invalid_request_error", "conflict"};
    case absl::StatusCode::kResourceExhausted:
      // Full disks and quotas are not emptied by waiting, places are.
      if (Message(status).find("again later") == std::string_view::npos) {
        return {429, "insufficient_quota", "insufficient_quota"};
      }
      return KindOf(status.code());
    default:
      return KindOf(status.code());
  }
}

}  // namespace

absl::Status ParamError(std::string_view param, const std::string& message) {
  absl::Status status = InvalidArgument(message);
  status.SetPayload(kParam, absl::Cord(std::string(param)));
  return status;
}

absl::Status InParam(std::string_view param, absl::Status status) {
  if (absl::IsInvalidArgument(status) && !status.GetPayload(kParam).has_value()) {
    status.SetPayload(kParam, absl::Cord(std::string(param)));
  }
  return status;
}

absl::Status NotFoundIn(std::string_view param, absl::Status status) {
  if (absl::IsNotFound(status)) status.SetPayload(kParam, absl::Cord(std::string(param)));
  return status;
}

absl::Status NoModel(const std::string& message) {
  absl::Status status = NotFound(message);
  status.SetPayload(kParam, absl::Cord("model"));
  return status;
}

ErrorAnswer ErrorOf(const absl::Status& status, Asks asks) {
  const Kind kind = asks == Asks::kModel ? KindOf(status.code()) : KindOfTraining(status);
  nlohmann::ordered_json error = {{"message", std::string(status.message())},
                                  {"type", kind.type},
                                  {"param", nullptr},
                                  {"code", nullptr}};
  if (const auto param = status.GetPayload(kParam); param.has_value()) {
    error["param"] = std::string(*param);
  }
  if (kind.code != nullptr) error["code"] = kind.code;
  nlohmann::ordered_json body;
  body["error"] = std::move(error);
  const bool again = kind.retry_after_s > 0 || kind.http_status == 408 || kind.http_status == 500;
  return {kind.http_status, DumpJson(body), kind.retry_after_s, again};
}

}  // namespace sft::server::openai
