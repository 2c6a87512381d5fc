#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <vector>

#include "server/door/gate.h"

namespace sft::server {

// Watches the calls that gRPC's own services serve, health and reflection, which come through no
// door: counts what fails, and bounds the streams of reflection, each of which holds a thread. The
// gate is borrowed.
std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
WatchLibraryCalls(Gate& gate);

}  // namespace sft::server
