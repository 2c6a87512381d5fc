#pragma once

#include <grpcpp/grpcpp.h>

namespace sft::rpc {

// Options every server of ours has: keepalive that agrees with MakeChannel, message limits, and an
// exclusive port (by default a second server could share it silently). After BuildAndStart() test
// the server for null and the selected port for 0.
void SetServerOptions(grpc::ServerBuilder& builder);

}  // namespace sft::rpc
