#include "server/calls/messages.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>

namespace sft::server {

absl::Status ParseMessage(grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  const bool parsed =
      grpc::GenericDeserialize<grpc::ProtoBufferReader, google::protobuf::Message>(&bytes, &message)
          .ok();
  if (parsed) return absl::OkStatus();
  return InvalidArgument("what was sent is no " + message.GetDescriptor()->full_name());
}

grpc::ByteBuffer BytesOf(const google::protobuf::Message& message) {
  grpc::ByteBuffer bytes;
  bool own = false;
  (void)grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(message, &bytes,
                                                                                   &own);
  return bytes;
}

}  // namespace sft::server
