#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "common/base/status.h"

namespace sft::server {

// Messages as gRPC carries them: the table of methods knows no types, so neither does the library.

// INVALID_ARGUMENT for bytes that are no such message.
absl::Status ParseMessage(grpc::ByteBuffer& bytes, google::protobuf::Message& message);
grpc::ByteBuffer BytesOf(const google::protobuf::Message& message);

}  // namespace sft::server
