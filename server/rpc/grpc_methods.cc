#include "server/rpc/grpc_methods.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/method_handler.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>

#include "common/rpc/channel.h"
#include "common/rpc/status.h"

namespace sft::server {
namespace {

using grpc::ByteBuffer;
using Stream = grpc::ServerReaderWriter<ByteBuffer, ByteBuffer>;

constexpr std::string_view kPackage = "/sft.v1.";

template <typename Metadata>
std::string ValueOf(const Metadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
}

absl::Status Parse(ByteBuffer& bytes, google::protobuf::Message& message) {
  const bool parsed =
      grpc::GenericDeserialize<grpc::ProtoBufferReader, google::protobuf::Message>(&bytes, &message)
          .ok();
  if (parsed) return absl::OkStatus();
  return InvalidArgument("what was sent is no " + message.GetDescriptor()->full_name());
}

ByteBuffer BytesOf(const google::protobuf::Message& message) {
  ByteBuffer bytes;
  bool own = false;
  (void)grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(message, &bytes,
                                                                                   &own);
  return bytes;
}

class UnaryExchange final : public Exchange {
 public:
  UnaryExchange(const grpc::ServerContext& context, const ByteBuffer& request, ByteBuffer& response)
      : context_(context), origin_(OriginOf(context)), request_(request), response_(response) {}
  const CallOrigin& origin() const override { return origin_; }
  absl::StatusOr<bool> Read(google::protobuf::Message& message) override {
    SFT_RETURN_IF_ERROR(Parse(request_, message));
    return true;
  }
  bool Write(const google::protobuf::Message& message) override {
    response_ = BytesOf(message);
    return true;
  }
  bool Gone() const override { return context_.IsCancelled(); }

 private:
  const grpc::ServerContext& context_;
  const CallOrigin origin_;
  ByteBuffer request_;
  ByteBuffer& response_;
};

class StreamExchange final : public Exchange {
 public:
  StreamExchange(grpc::ServerContext& context, Stream& stream, ReadDeadlines& deadlines)
      : context_(context), origin_(OriginOf(context)), stream_(stream), deadlines_(deadlines) {}
  const CallOrigin& origin() const override { return origin_; }
  absl::StatusOr<bool> Read(google::protobuf::Message& message) override {
    ByteBuffer bytes;
    {
      const ReadDeadlines::Wait waits(deadlines_, context_);
      if (!stream_.Read(&bytes)) return false;
    }
    SFT_RETURN_IF_ERROR(Parse(bytes, message));
    return true;
  }
  bool Write(const google::protobuf::Message& message) override {
    return stream_.Write(BytesOf(message));
  }
  bool Gone() const override { return context_.IsCancelled(); }

 private:
  grpc::ServerContext& context_;
  const CallOrigin origin_;
  Stream& stream_;
  ReadDeadlines& deadlines_;
};

}  // namespace

std::string PathOf(std::string_view method) {
  std::string path(method);
  std::replace(path.begin(), path.end(), '.', '/');
  return std::string(kPackage) + path;
}

std::string MethodOf(std::string_view path) {
  if (!path.starts_with(kPackage)) return "";
  std::string method(path.substr(kPackage.size()));
  std::replace(method.begin(), method.end(), '/', '.');
  return method;
}

CallOrigin OriginOf(const grpc::ServerContextBase& context) {
  CallOrigin origin;
  origin.peer = context.peer();
  origin.authorization = ValueOf(context.client_metadata(), "authorization");
  origin.incarnation = ValueOf(context.client_metadata(), rpc::kIncarnationKey);
  if (const auto proved = context.auth_context(); proved != nullptr) {
    const auto values = proved->FindPropertyValues("x509_pem_cert");
    if (!values.empty()) {
      origin.certificate_pem.assign(values.front().data(), values.front().size());
    }
  }
  return origin;
}

GrpcMethods::GrpcMethods(const Methods& methods, Door& door, Clock& clock, Nanos read_patience)
    : door_(door), deadlines_(clock, read_patience) {
  int index = 0;
  for (const auto& [name, method] : methods.all()) {
    AddMethodOf(method);
    if (method.run == nullptr) {
      session_ = index;
      MarkMethodRaw(index);
    }
    ++index;
  }
}

void GrpcMethods::AddMethodOf(const Method& method) {
  using grpc::internal::RpcMethod;
  std::unique_ptr<grpc::internal::MethodHandler> handler;
  if (method.run != nullptr && method.streams) {
    handler =
        std::make_unique<grpc::internal::BidiStreamingHandler<GrpcMethods, ByteBuffer, ByteBuffer>>(
            [&method](GrpcMethods* self, grpc::ServerContext* context, Stream* stream) {
              StreamExchange exchange(*context, *stream, self->deadlines_);
              return rpc::ToGrpc(self->door_.Serve(method, exchange));
            },
            this);
  } else if (method.run != nullptr) {
    handler =
        std::make_unique<grpc::internal::RpcMethodHandler<GrpcMethods, ByteBuffer, ByteBuffer>>(
            [&method](GrpcMethods* self, grpc::ServerContext* context, const ByteBuffer* request,
                      ByteBuffer* response) {
              UnaryExchange exchange(*context, *request, *response);
              return rpc::ToGrpc(self->door_.Serve(method, exchange));
            },
            this);
  }
  // The service borrows the path and owns the method and its handler.
  AddMethod(std::make_unique<grpc::internal::RpcServiceMethod>(
                paths_.emplace_back(PathOf(method.rule.method)).c_str(),
                method.streams ? RpcMethod::BIDI_STREAMING : RpcMethod::NORMAL_RPC,
                handler.release())
                .release());
}

}  // namespace sft::server
