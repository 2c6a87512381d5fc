#pragma once

#include <string>

#include "server/door/methods.h"

namespace sft::server {

// The OpenAPI 3.1 description of the methods that the REST API serves, made from the descriptors of
// their messages: JSON in one line.
std::string OpenApiOf(const Methods& methods);

}  // namespace sft::server
