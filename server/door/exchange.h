#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "common/base/status.h"

namespace sft::server {

// What a transport knows of who calls, before anything is decided about it.
struct CallOrigin {
  std::string peer;             // "ipv4:10.0.0.3:4711"
  std::string certificate_pem;  // whose key TLS has proved; empty: none
  std::string authorization;    // "Bearer ..."; empty: none
  std::string session_token;    // id of the token that opened the caller's session; empty: none
  std::string incarnation;      // the life of the worker that calls; empty: it does not say
};

// The messages of one call, as a transport carries them. Of the one thread that serves the call.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const CallOrigin& origin() const = 0;
  // The caller's next message. False: there are no more, or the caller has gone. INVALID_ARGUMENT
  // for bytes that are no such message.
  virtual absl::StatusOr<bool> Read(google::protobuf::Message& message) = 0;
  // False: the caller has gone. Waits while the caller reads slowly.
  virtual bool Write(const google::protobuf::Message& message) = 0;
  // Whether the caller has hung up, its connection broke or its deadline passed.
  virtual bool Gone() const = 0;
};

}  // namespace sft::server
