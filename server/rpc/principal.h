#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/core/access.h"
#include "server/rpc/gate.h"
#include "server/rpc/rules.h"

namespace sft::server {

// Passes the call on to Admit, and writes the audit when it has ended. The gate is borrowed.
std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
PrincipalInterceptors(Gate& gate);
// Refuses calls without a principal before a service sees them, reflection and health among them.
// For the credentials of a server that is not open.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeAuthenticator(Gate& gate);

// The first call of every handler: whether the caller may do this with what the request names.
// UNAUTHENTICATED without a principal; PERMISSION_DENIED without the role; INVALID_ARGUMENT for an
// enum's value that nobody knows; NOT_FOUND for what
// belongs to a project of which the caller is no member, as if it were not there;
// RESOURCE_EXHAUSTED for a stream too many.
// Where `request` is only a part of what was sent, `whole` is all of it.
grpc::Status Admit(const grpc::ServerContextBase& context, const google::protobuf::Message& request,
                   const google::protobuf::Message* whole = nullptr);
// Of a stream that the client writes, before its first message; that is admitted as above.
grpc::Status Admit(const grpc::ServerContextBase& context);
// Of a worker's stream, which has no interceptor: that would cost each of its messages twice.
grpc::Status AdmitSession(Gate& gate, const grpc::ServerContextBase& context, Principal& caller);
// Whether an admitted caller may read a blob by its hash: it was uploaded for one of its projects,
// or is needed by a job on its node. NOT_FOUND otherwise.
grpc::Status AdmitBlob(const grpc::ServerContextBase& context, const std::string& sha256);
// Whether who was admitted before still is someone and still has the role: for streams that last.
grpc::Status AdmitStill(const grpc::ServerContextBase& context);

// Of an admitted call.
const Principal& CallerOf(const grpc::ServerContextBase& context);
std::string PrincipalOf(const grpc::ServerContextBase& context);
// The project that the call is for, of rules with Place::kProject, or that has what it names; of a
// node's call empty.
std::string ProjectOf(const grpc::ServerContextBase& context);
// The projects in which the caller has this role or a higher one; absent: all.
std::optional<std::vector<std::string>> ProjectsWith(const Principal& principal, Role least);
// Those that it may see.
std::optional<std::vector<std::string>> VisibleTo(const Principal& principal);

}  // namespace sft::server
