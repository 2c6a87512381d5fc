#pragma once

#include <grpcpp/security/auth_metadata_processor.h>

#include <memory>

#include "server/door/methods.h"

namespace sft::server {

// Refuses calls without a principal before anything else sees them, health and reflection among
// them, but not those that anybody may make. For the credentials of a server that is not open. Both
// are borrowed.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeAuthenticator(Gate& gate, const Methods& methods);

}  // namespace sft::server
