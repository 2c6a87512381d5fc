#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <string_view>

#include "common/base/status.h"
#include "server/http/http_request.h"

namespace sft::server {

// Messages and errors as the REST API writes them (docs/rest.md).

// Reads protobuf's JSON form; an empty text is an empty message. INVALID_ARGUMENT for what is none,
// or has a field that the message has not.
absl::Status ReadJson(std::string_view text, google::protobuf::Message& message);
// Reads the fields of a message that are single values from a query, "sha256=ab&offset=7", by their
// names in the .proto files. INVALID_ARGUMENT for one that it has not, or that is none.
absl::Status ReadFields(std::string_view query, google::protobuf::Message& message);
// Fields by their names in the .proto files, with `defaults` those of default value too; in one
// line.
std::string JsonOf(const google::protobuf::Message& message, bool defaults = true);

// {"code": "NOT_FOUND", "message": "...", "details": [{"field": "...", "description": "..."}]}
std::string ErrorJson(const absl::Status& status);
// The answer to a call that failed. One that would fail again says so: `x-should-retry: false`.
HttpResponse RestError(const absl::Status& status);

// A text as a JSON string, quotes included.
std::string QuotedJson(std::string_view text);

// One message of an event stream; `name` and `id` are left out where they are empty. `data` is one
// line.
std::string EventText(std::string_view name, std::string_view id, std::string_view data);

}  // namespace sft::server
