#pragma once

#include <memory>
#include <string_view>

#include "common/base/status.h"
#include "common/tls/certificate.h"

// TLS of a server over sockets that do not block.

namespace sft::tls {

// What the sessions of a server share: its key and its certificate, TLS 1.2 or later. Thread-safe.
class ServerContext {
 public:
  // The certificate may be followed by those that lead to its authority. INVALID_ARGUMENT for a key
  // that is not the certificate's. `protocol` is the one that is offered (ALPN), "http/1.1".
  static absl::StatusOr<std::unique_ptr<ServerContext>> Make(const Identity& identity,
                                                             std::string_view protocol);
  ~ServerContext();

 private:
  friend class ServerSession;
  struct Parts;
  explicit ServerContext(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// One connection, whose handshake is part of the first read. Of one thread.
class ServerSession {
 public:
  enum class Next {
    kMoved,      // bytes were moved
    kWaitRead,   // none can be: the socket has to become readable
    kWaitWrite,  // or writable
    kEnded,      // the peer sends no more
    kBroken,     // the connection is of no use any more
  };

  // Borrows the socket, which does not block.
  ServerSession(const ServerContext& context, int socket);
  ~ServerSession();

  // `moved`: how many bytes.
  Next Read(char* bytes, size_t size, size_t& moved);
  Next Write(std::string_view bytes, size_t& moved);
  // Tells the peer that nothing follows, if that can be done at once.
  void Close();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace sft::tls
