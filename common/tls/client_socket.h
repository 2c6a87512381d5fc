#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace sft::tls {

// A connection to a server, in the clear until StartTls. Of one thread, whose calls wait until the
// deadline of the connection at most: DEADLINE_EXCEEDED. UNAVAILABLE where the peer does not answer
// or has gone.
class ClientSocket {
 public:
  // To an address in digits ("192.0.2.1", "2001:db8::1"). All that is done with the connection has
  // to be done within `patience`. `clock` is borrowed.
  static absl::StatusOr<std::unique_ptr<ClientSocket>> Connect(const std::string& address, int port,
                                                               Nanos patience, Clock& clock);
  ~ClientSocket();

  // Goes on with TLS 1.2 or later, to a server whose certificate is for `host` and is vouched for
  // by the authorities in `ca_file` (empty: the system's): UNAUTHENTICATED otherwise.
  absl::Status StartTls(const std::string& host, const std::string& ca_file);
  absl::Status Write(std::string_view bytes);
  // Some bytes, as they come; none: the peer sends no more.
  absl::StatusOr<std::string> Read();

 private:
  struct Parts;
  explicit ClientSocket(std::unique_ptr<Parts> parts);
  // Waits for the socket (POLLIN, POLLOUT).
  absl::Status Wait(short events);
  // What a call of the library that returned `result` has to wait for.
  absl::Status WaitForTls(int result, const char* what);

  std::unique_ptr<Parts> parts_;
};

}  // namespace sft::tls
