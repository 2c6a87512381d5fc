#include "server/calls/grpc_methods.h"

#include <grpcpp/support/method_handler.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>

#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "server/calls/messages.h"

namespace sft::server {
namespace {

using grpc::ByteBuffer;
using Reader = grpc::ServerReader<ByteBuffer>;
using Writer = grpc::ServerWriter<ByteBuffer>;

constexpr std::string_view kPackage = "/sft.v1.";

// Of any kind of call; the kinds differ in where their messages come from and go to.
class GrpcExchange : public Exchange {
 public:
  explicit GrpcExchange(const grpc::ServerContext& context)
      : context_(context), origin_(OriginOf(context)) {}
  const CallOrigin& origin() const override { return origin_; }
  bool Gone() const override { return context_.IsCancelled(); }

 private:
  const grpc::ServerContext& context_;
  const CallOrigin origin_;
};

// One request, which has come with the call: until it has, the library gives the call no thread.
class RequestExchange : public GrpcExchange {
 public:
  RequestExchange(const grpc::ServerContext& context, const ByteBuffer& request)
      : GrpcExchange(context), request_(request) {}
  absl::StatusOr<bool> Read(google::protobuf::Message& message) override {
    SFT_RETURN_IF_ERROR(ParseMessage(request_, message));
    return true;
  }

 private:
  ByteBuffer request_;
};

class UnaryExchange final : public RequestExchange {
 public:
  UnaryExchange(const grpc::ServerContext& context, const ByteBuffer& request, ByteBuffer& response)
      : RequestExchange(context, request), response_(response) {}
  bool Write(const google::protobuf::Message& message) override {
    response_ = BytesOf(message);
    return true;
  }

 private:
  ByteBuffer& response_;
};

class ServerStreamExchange final : public RequestExchange {
 public:
  ServerStreamExchange(const grpc::ServerContext& context, const ByteBuffer& request,
                       Writer& writer)
      : RequestExchange(context, request), writer_(writer) {}
  bool Write(const google::protobuf::Message& message) override {
    return writer_.Write(BytesOf(message));
  }

 private:
  Writer& writer_;
};

class ClientStreamExchange final : public GrpcExchange {
 public:
  ClientStreamExchange(grpc::ServerContext& context, Reader& reader, ByteBuffer& response,
                       ReadDeadlines& deadlines)
      : GrpcExchange(context),
        call_(context),
        reader_(reader),
        response_(response),
        deadlines_(deadlines) {}
  absl::StatusOr<bool> Read(google::protobuf::Message& message) override {
    ByteBuffer bytes;
    {
      const ReadDeadlines::Wait waits(deadlines_, call_);
      if (!reader_.Read(&bytes)) return false;
    }
    SFT_RETURN_IF_ERROR(ParseMessage(bytes, message));
    return true;
  }
  bool Write(const google::protobuf::Message& message) override {
    response_ = BytesOf(message);
    return true;
  }

 private:
  grpc::ServerContext& call_;
  Reader& reader_;
  ByteBuffer& response_;
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

std::string ValueOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata,
                    const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
}

std::string CertificateOf(const grpc::AuthContext& context) {
  const auto values = context.FindPropertyValues("x509_pem_cert");
  return values.empty() ? "" : std::string(values.front().data(), values.front().size());
}

CallOrigin OriginOf(const grpc::ServerContextBase& context) {
  CallOrigin origin;
  origin.peer = context.peer();
  origin.authorization = ValueOf(context.client_metadata(), "authorization");
  origin.incarnation = ValueOf(context.client_metadata(), rpc::kIncarnationKey);
  if (const auto proved = context.auth_context(); proved != nullptr) {
    origin.certificate_pem = CertificateOf(*proved);
  }
  return origin;
}

GrpcMethods::GrpcMethods(const Methods& methods, Door& door, Clock& clock, Nanos read_patience)
    : door_(door), deadlines_(clock, read_patience) {
  int index = 0;
  for (const auto& [name, method] : methods.all()) {
    AddMethodOf(method);
    const bool follows = method.kind == Method::Kind::kFollow;
    if (method.kind == Method::Kind::kStanding) session_ = index;
    if (follows) followed_[&method] = index;
    if (follows || method.kind == Method::Kind::kStanding) MarkMethodRaw(index);
    ++index;
  }
}

std::vector<const Method*> GrpcMethods::followed() const {
  std::vector<const Method*> methods;
  for (const auto& [method, index] : followed_) methods.push_back(method);
  return methods;
}

void GrpcMethods::AddMethodOf(const Method& method) {
  using grpc::internal::RpcMethod;
  using Self = GrpcMethods;
  std::unique_ptr<grpc::internal::MethodHandler> handler;
  RpcMethod::RpcType type = RpcMethod::BIDI_STREAMING;
  // One request of who is nobody is read as those of a stream are, once the call has a place: the
  // library would take it in before it tells of the call. On the wire both are the same.
  const bool anybody = method.rule.caller == Caller::kAnybody;
  switch (anybody ? Method::Kind::kClientStream : method.kind) {
    case Method::Kind::kUnary:
      type = RpcMethod::NORMAL_RPC;
      handler = std::make_unique<grpc::internal::RpcMethodHandler<Self, ByteBuffer, ByteBuffer>>(
          [&method](Self* self, grpc::ServerContext* context, const ByteBuffer* request,
                    ByteBuffer* response) {
            UnaryExchange exchange(*context, *request, *response);
            return rpc::ToGrpc(self->door_.Serve(method, exchange));
          },
          this);
      break;
    case Method::Kind::kServerStream:
      type = RpcMethod::SERVER_STREAMING;
      handler =
          std::make_unique<grpc::internal::ServerStreamingHandler<Self, ByteBuffer, ByteBuffer>>(
              [&method](Self* self, grpc::ServerContext* context, const ByteBuffer* request,
                        Writer* writer) {
                ServerStreamExchange exchange(*context, *request, *writer);
                return rpc::ToGrpc(self->door_.Serve(method, exchange));
              },
              this);
      break;
    case Method::Kind::kClientStream:
      type = RpcMethod::CLIENT_STREAMING;
      handler =
          std::make_unique<grpc::internal::ClientStreamingHandler<Self, ByteBuffer, ByteBuffer>>(
              [&method](Self* self, grpc::ServerContext* context, Reader* reader,
                        ByteBuffer* response) {
                ClientStreamExchange exchange(*context, *reader, *response, self->deadlines_);
                return rpc::ToGrpc(self->door_.Serve(method, exchange));
              },
              this);
      break;
    case Method::Kind::kFollow:
      type = RpcMethod::SERVER_STREAMING;  // from a queue: FollowCall
      break;
    case Method::Kind::kStanding:
      break;
  }
  // The service borrows the path and owns the method and its handler.
  AddMethod(std::make_unique<grpc::internal::RpcServiceMethod>(
                paths_.emplace_back(PathOf(method.rule.method)).c_str(), type, handler.release())
                .release());
}

}  // namespace sft::server
