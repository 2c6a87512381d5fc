#pragma once

#include <google/protobuf/message.h>

#include "common/base/status.h"

namespace sft::server {

// Whether each enum in a request, however deep, has a value that this server knows: what a newer
// client means by another one nobody here can say, and a number that passes every `switch` would
// pass every check, too. INVALID_ARGUMENT names the field, the value and those that there are. In a
// list an unspecified value is none either.
absl::Status CheckKnownValues(const google::protobuf::Message& request);

}  // namespace sft::server
