#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/io/file.h"

namespace sft::client {

// Waits on loopback for the browser that a provider of logins sends here with a code (RFC 8252).
class CodeListener {
 public:
  static constexpr std::chrono::minutes kPatience{10};

  // At a port of its own.
  static absl::StatusOr<CodeListener> Open();

  // "http://127.0.0.1:PORT/callback"
  std::string redirect_uri() const;
  // The code that came with this state; whoever comes with another one is told so, and waited on.
  // PERMISSION_DENIED where the provider sends an error, DEADLINE_EXCEEDED after kPatience,
  // CANCELLED after Ctrl-C.
  absl::StatusOr<std::string> Wait(const std::string& state, Clock& clock) const;

 private:
  CodeListener(io::UniqueFd socket, int port) : socket_(std::move(socket)), port_(port) {}
  io::UniqueFd socket_;
  int port_;
};

// The value of a name in the query of a request's first line, "GET /callback?code=x HTTP/1.1";
// empty: it is not there, or cannot be read.
std::string QueryValue(const std::string& line, const std::string& name);

}  // namespace sft::client
