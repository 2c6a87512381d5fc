#pragma once

#include <grpcpp/grpcpp.h>

namespace sft::rpc {

// Options of all our servers: keepalive that agrees with MakeChannel, message limits, and an
// exclusive port (by default a second server could share it silently). After BuildAndStart() check
// that the server is not null and the selected port not 0.
void SetServerOptions(grpc::ServerBuilder& builder);

}  // namespace sft::rpc
