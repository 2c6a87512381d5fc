#pragma once

#include <atomic>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "server/http/http_request.h"

namespace sft::server {

// A request whose connection has a thread of its own, which may wait: for the rest of the body, and
// while the caller reads slowly. Of that thread, but for what it shares with others.
class HttpCall {
 public:
  // Longest wait for the whole body, and for a caller who reads nothing.
  static constexpr std::chrono::seconds kBodyTimeout{30}, kReadTimeout{30};

  struct Shared {
    std::atomic<bool> ended = false;        // set by others: ends all waits
    std::atomic<bool> awaits_body = false;  // all of it has not come
  };
  // Borrows `shared`.
  HttpCall(HttpRequest request, io::UniqueFd fd, std::string begun, Shared& shared);

  const HttpRequest& request() const { return request_; }
  // "ipv4:127.0.0.1:4711"
  const std::string& peer() const { return peer_; }

  // OUT_OF_RANGE for a body of more than `most` bytes, DEADLINE_EXCEEDED for one that does not
  // come, RESOURCE_EXHAUSTED for one whose place another needed, INVALID_ARGUMENT for one whose
  // length is not told or not kept to.
  absl::StatusOr<std::string> ReadBody(size_t most);

  // All of these are false when the caller has gone.
  bool Respond(const HttpResponse& response);
  // In place of Respond: a body in pieces, none of them empty, then its end.
  bool Begin(const HttpResponse& head);
  bool Write(std::string_view piece);
  bool End();
  bool begun() const { return begun_; }

  // Whether the caller has closed the connection.
  bool Gone() const;

 private:
  // False at the deadline, and when it is ended.
  bool Await(int16_t events, MonoTime deadline) const;
  bool Send(std::string_view bytes);

  const HttpRequest request_;
  const io::UniqueFd fd_;
  Shared& shared_;
  const std::string peer_;
  const bool in_chunks_;  // HTTP/1.0 knows no chunks: the connection's end is the body's
  std::string body_;
  bool begun_ = false;
};

}  // namespace sft::server
