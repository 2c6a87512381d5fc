#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/async_stream.h>

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/calls/read_deadlines.h"
#include "server/door/methods.h"

namespace sft::server {

// "JobService.GetJob" as gRPC's path of it, "/sft.v1.JobService/GetJob".
std::string PathOf(std::string_view method);
// The other way round; empty: it is none of ours.
std::string MethodOf(std::string_view path);

// The value of a key of a call's metadata; empty where it has none.
std::string ValueOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata,
                    const char* key);
// The certificate whose key TLS has proved (PEM); empty where there is none.
std::string CertificateOf(const grpc::AuthContext& context);
// What a call of gRPC brings of its caller.
CallOrigin OriginOf(const grpc::ServerContextBase& context);

// All methods as gRPC serves them, one thread a call: bytes come in and go out here, and each call
// goes through the door. Those that hold none, streams of workers and followers, are taken from a
// queue instead (Sessions, Followers).
class GrpcMethods final : public grpc::Service {
 public:
  // How long a caller that has begun to send may send nothing before its call is ended; what came
  // of an upload is kept for a resume.
  static constexpr std::chrono::minutes kReadPatience{2};

  // Borrowed.
  GrpcMethods(const Methods& methods, Door& door, Clock& clock,
              Nanos read_patience = kReadPatience);

  // The next call of a followed method goes to `request` and `stream`; then `tag` is in the queue.
  // Calls come in with their request.
  void RequestFollow(const Method& method, grpc::ServerContext* context, grpc::ByteBuffer* request,
                     grpc::ServerAsyncWriter<grpc::ByteBuffer>* stream,
                     grpc::ServerCompletionQueue* queue, void* tag) {
    RequestAsyncServerStreaming(followed_.at(&method), context, request, stream, queue, queue, tag);
  }
  std::vector<const Method*> followed() const;
  // The next stream of a worker goes to `stream`; then `tag` is in the queue.
  void RequestSession(grpc::ServerContext* context,
                      grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>* stream,
                      grpc::ServerCompletionQueue* queue, void* tag) {
    RequestAsyncBidiStreaming(session_, context, stream, queue, queue, tag);
  }

 private:
  void AddMethodOf(const Method& method);

  std::deque<std::string> paths_;
  Door& door_;
  ReadDeadlines deadlines_;
  // Their indexes.
  int session_ = -1;
  std::map<const Method*, int> followed_;
};

}  // namespace sft::server
