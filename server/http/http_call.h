#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "server/http/http_stream.h"

namespace sft::server {

// A request for one thread, which may wait: for the body, and while the caller reads slowly. Of
// that thread, but for what it shares with others.
class HttpCall {
 public:
  struct Shared {
    std::atomic<bool> ended = false;        // set by others: ends all waits
    std::atomic<bool> awaits_body = false;  // all of it has not come
  };
  // Borrows `shared`.
  HttpCall(std::shared_ptr<HttpStream> stream, Shared& shared);
  // What is not answered by then is cut off.
  ~HttpCall();

  const HttpRequest& request() const { return stream_->request(); }
  const std::string& peer() const { return stream_->peer(); }

  // As HttpStream::ReadBody; also RESOURCE_EXHAUSTED for one whose place another needed, and
  // CANCELLED when the caller has gone.
  absl::StatusOr<std::string> ReadBody(size_t most);

  // As HttpStream::ReadSome. It has a place of its own, which no other takes.
  absl::StatusOr<std::string> ReadSome();

  // All of these are false when the caller has gone.
  bool Respond(const HttpResponse& response);
  // In place of Respond: a body in pieces, none of them empty, then its end.
  bool Begin(const HttpResponse& head);
  bool Write(std::string_view piece);
  bool End();
  bool begun() const { return stream_->begun(); }

  // Whether the caller has closed the connection, or half of it: none of this API does so.
  bool Gone() const { return shared_.ended || stream_->Gone(); }

 private:
  // What the server's thread tells of; outlives the call.
  struct Moved {
    Mutex mutex;
    CondVar changed;
    std::optional<absl::StatusOr<std::string>> body SFT_GUARDED_BY(mutex);
  };

  // Keeps what the server's thread gives.
  HttpStream::TakeBody Taker();
  // Waits for that; nullopt when the caller has gone or the call is ended.
  std::optional<absl::StatusOr<std::string>> AwaitBody();

  const std::shared_ptr<HttpStream> stream_;
  Shared& shared_;
  const std::shared_ptr<Moved> moved_;
};

}  // namespace sft::server
