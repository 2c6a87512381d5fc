#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <string>
#include <vector>

namespace sft::server {

// Who makes a call. One interceptor decides it for every rpc before its handler runs and passes it
// in a metadata key that it strips from what the peer sent. Only loopback is served until TLS and
// tokens exist, so everybody is the local user.
std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
PrincipalInterceptors();

inline constexpr char kLocalPrincipal[] = "local";

// The principal of a call; empty when no interceptor has seen it, which a handler must refuse.
std::string PrincipalOf(const grpc::ServerContextBase& context);
// UNAUTHENTICATED when there is none.
grpc::Status CheckPrincipal(const grpc::ServerContextBase& context);

}  // namespace sft::server
