#include "server/http/rest_json.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/rpc/status.h"
#include "server/http/percent.h"

namespace sft::server {
namespace {

struct Kind {
  int http_status;
  bool again = false;  // a caller that tries again may succeed
  int retry_after_s = 0;
};

Kind KindOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      return {400};
    case absl::StatusCode::kUnauthenticated:
      return {401};
    case absl::StatusCode::kPermissionDenied:
      return {403};
    case absl::StatusCode::kNotFound:
      return {404};
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return {409};
    case absl::StatusCode::kDeadlineExceeded:
      return {408, true};
    case absl::StatusCode::kOutOfRange:
      return {413};
    case absl::StatusCode::kResourceExhausted:
      // Full disks and quotas are not emptied by waiting, streams and places are.
      return Message(status).find("try again later") == std::string_view::npos ? Kind{429}
                                                                               : Kind{429, true, 2};
    case absl::StatusCode::kUnimplemented:
      return {501};
    case absl::StatusCode::kUnavailable:
      return {503, true, 5};
    case absl::StatusCode::kCancelled:
      return {499};
    default:
      return {500};
  }
}

// A number of any size as JSON has those of 64 bits: as text. Protobuf reads both.
nlohmann::ordered_json ValueOf(const google::protobuf::FieldDescriptor& field,
                               const std::string& text) {
  if (field.cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_BOOL) return text;
  return text == "true"    ? nlohmann::ordered_json(true)
         : text == "false" ? nlohmann::ordered_json(false)
                           : nlohmann::ordered_json(text);
}

}  // namespace

absl::Status ReadFields(std::string_view query, google::protobuf::Message& message) {
  const auto pairs = ReadQuery(query);
  if (!pairs.has_value()) return InvalidArgument("the query cannot be read");
  nlohmann::ordered_json fields = nlohmann::ordered_json::object();
  for (const auto& [name, value] : *pairs) {
    const auto* const field = message.GetDescriptor()->FindFieldByName(name);
    const bool single = field != nullptr && !field->is_repeated() &&
                        field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE &&
                        field->type() != google::protobuf::FieldDescriptor::TYPE_BYTES;
    if (!single || fields.contains(name)) {
      return InvalidArgument(fmt::format("\"{}\" {}", WithoutHidden(name.substr(0, 80)),
                                         single ? "is given twice" : "is no part of this query"));
    }
    fields[name] = ValueOf(*field, value);
  }
  return ReadJson(DumpJson(fields), message);
}

absl::Status ReadJson(std::string_view text, google::protobuf::Message& message) {
  if (text.find_first_not_of(" \t\r\n") == text.npos) return absl::OkStatus();
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = false;
  const auto read = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(text.data(), text.size()), &message, options);
  if (read.ok()) return absl::OkStatus();
  constexpr size_t kMostTold = 500;
  return InvalidArgument(fmt::format("the body is no {} in JSON: {}",
                                     message.GetDescriptor()->full_name(),
                                     std::string(read.message()).substr(0, kMostTold)));
}

std::string JsonOf(const google::protobuf::Message& message, bool defaults) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = defaults;
  std::string text;
  // Fails for messages alone that hold what JSON has no form for: ours hold none.
  (void)google::protobuf::util::MessageToJsonString(message, &text, options);
  return text;
}

std::string ErrorJson(const absl::Status& status) {
  nlohmann::ordered_json error = {{"code", absl::StatusCodeToString(status.code())},
                                  {"message", std::string(Message(status))},
                                  {"details", nlohmann::ordered_json::array()}};
  for (const rpc::FieldViolation& each : rpc::ViolationsOf(rpc::ToGrpc(status))) {
    error["details"].push_back({{"field", each.field}, {"description", each.description}});
  }
  return DumpJson(error);
}

HttpResponse RestError(const absl::Status& status) {
  const Kind kind = KindOf(status);
  HttpResponse response{kind.http_status, "application/json", ErrorJson(status), {}};
  if (kind.retry_after_s > 0) {
    response.fields.emplace_back("Retry-After", std::to_string(kind.retry_after_s));
  }
  if (!kind.again) response.fields.emplace_back("x-should-retry", "false");
  if (kind.http_status == 401) response.fields.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

std::string QuotedJson(std::string_view text) { return DumpJson(nlohmann::json(text)); }

std::string EventText(std::string_view name, std::string_view id, std::string_view data) {
  std::string event;
  if (!name.empty()) event += fmt::format("event: {}\n", name);
  if (!id.empty()) event += fmt::format("id: {}\n", id);
  return event + fmt::format("data: {}\n\n", data);
}

}  // namespace sft::server
