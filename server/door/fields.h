#pragma once

#include <google/protobuf/message.h>

#include <string>

namespace sft::server {

// The string field of this name; empty where a message has none.
std::string StringField(const google::protobuf::Message& message, const char* name);
// Whether a request asks for a dry run, as requests call it.
bool ChangesNothing(const google::protobuf::Message& request);

}  // namespace sft::server
