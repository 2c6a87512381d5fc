#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/io/file.h"
#include "common/tls/server_session.h"

namespace sft::server {

// An accepted connection that does not block, with TLS or without. Of one thread.
class HttpSocket {
 public:
  using Next = tls::ServerSession::Next;

  // Without TLS where `tls` is null.
  HttpSocket(io::UniqueFd fd, const tls::ServerContext* tls);

  int fd() const { return fd_.get(); }
  bool has_tls() const { return session_ != nullptr; }
  // "ipv4:10.0.0.3:4711"
  const std::string& peer() const { return peer_; }
  // Whose it is (SubscriberOf).
  const std::string& subscriber() const { return subscriber_; }

  Next Read(char* bytes, size_t size, size_t& moved);
  Next Write(std::string_view bytes, size_t& moved);
  // Nothing more is sent.
  void CloseSending();

 private:
  io::UniqueFd fd_;
  std::unique_ptr<tls::ServerSession> session_;
  std::string peer_, subscriber_;
};

}  // namespace sft::server
