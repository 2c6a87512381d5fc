#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "server/http/http_request.h"

namespace sft::server {

// What wakes the server's thread: connections about which others have said something. Thread-safe.
class HttpWake {
 public:
  // `fields`: of the head of each answer, each with its line's end.
  HttpWake(io::UniqueFd event, std::string fields)
      : event_(std::move(event)), fields_(std::move(fields)) {}
  const std::string& fields() const { return fields_; }
  int fd() const { return event_.get(); }
  void Tell(uint64_t connection) SFT_EXCLUDES(mutex_);
  // Those that were told of since.
  std::vector<uint64_t> Take() SFT_EXCLUDES(mutex_);

 private:
  const io::UniqueFd event_;  // an eventfd
  const std::string fields_;
  Mutex mutex_;
  std::vector<uint64_t> told_ SFT_GUARDED_BY(mutex_);
};

// One request and its answer. Who answers may do so from any thread and never waits here: what is
// written is queued, and the server's one thread sends it. Outlives its connection, which then is
// Gone. Thread-safe.
class HttpStream {
 public:
  using TakeBody = std::function<void(absl::StatusOr<std::string> body)>;

  HttpStream(std::shared_ptr<HttpWake> wake, uint64_t connection, HttpRequest request,
             std::string peer, bool has_tls)
      : wake_(std::move(wake)),
        connection_(connection),
        request_(std::move(request)),
        peer_(std::move(peer)),
        has_tls_(has_tls) {}
  HttpStream(const HttpStream&) = delete;

  const HttpRequest& request() const { return request_; }
  // "ipv4:127.0.0.1:4711"
  const std::string& peer() const { return peer_; }
  bool has_tls() const { return has_tls_; }

  // Once, before the answer: calls `take` in the server's thread, which it must not block, with the
  // whole body; with OUT_OF_RANGE for one of more than `most` bytes, DEADLINE_EXCEEDED for one that
  // comes too slowly, INVALID_ARGUMENT for one that is broken, RESOURCE_EXHAUSTED where the server
  // holds too much of bodies already. Not at all when the caller has gone.
  void ReadBody(size_t most, TakeBody take);
  // In place of that, for a body of any size, as often as there is more: calls `take` with the next
  // bytes, once some have come, and with none at the body's end. Who asks slowly has the caller
  // wait. Errors as of ReadBody; the caller has so long for each piece, too.
  void ReadSome(TakeBody take);

  // The answer: as a whole,
  void Respond(const HttpResponse& response);
  // or its head, then its body in pieces, then its end. An event stream is sent a line that says
  // nothing when it was silent for a while, so that no proxy takes it for dead.
  void Begin(const HttpResponse& head, bool events = false);
  void Write(std::string_view piece);
  void End();
  // The connection ends, and with it an answer that is not whole: nobody takes it for so.
  void Cut();
  bool begun() const;

  // Whether the caller has closed the connection, or it is broken.
  bool Gone() const;
  // Bytes that are written but not sent.
  size_t unsent() const;

  // From now on called by the server's thread, which it must not block, whenever all that was
  // written is sent, when the caller has gone and at an alarm. Null: no more.
  void WhenMoved(std::function<void()> moved);
  // Asks for a call of that at a time; the last one counts.
  void SetAlarm(MonoTime at);

 private:
  friend class HttpConnection;

  // A body, or a piece of one, that somebody waits for.
  struct WantedBody {
    size_t most = 0;
    TakeBody take;
    bool piece = false;
  };
  // What others have said since it was asked last.
  struct News {
    std::string bytes;
    std::optional<WantedBody> body;
    std::optional<MonoTime> alarm;
    bool ended = false, cut = false, closes = false, events = false;
    int status = 0;     // of the answer, once: it has begun
    MonoTime begun_at;  // then
  };
  News TakeNews() SFT_EXCLUDES(mutex_);
  void Sent(size_t bytes) SFT_EXCLUDES(mutex_);
  void SetGone() SFT_EXCLUDES(mutex_);
  // The body was read to its end: another request may follow it.
  void SetBodyDone() SFT_EXCLUDES(mutex_);
  void TellMoved() SFT_EXCLUDES(mutex_);

  void Say() SFT_REQUIRES(mutex_);
  void Append(std::string_view bytes) SFT_REQUIRES(mutex_);
  void SayStatus(int status) SFT_REQUIRES(mutex_);
  bool Closes() const SFT_REQUIRES(mutex_) { return !request_.keeps || !body_done_; }

  const std::shared_ptr<HttpWake> wake_;
  const uint64_t connection_;
  const HttpRequest request_;
  const std::string peer_;
  const bool has_tls_;

  mutable Mutex mutex_;
  News news_ SFT_GUARDED_BY(mutex_);
  bool said_ SFT_GUARDED_BY(mutex_) = false;  // the thread knows that there are news
  bool begun_ SFT_GUARDED_BY(mutex_) = false, ended_ SFT_GUARDED_BY(mutex_) = false;
  bool chunked_ SFT_GUARDED_BY(mutex_) = false;
  bool gone_ SFT_GUARDED_BY(mutex_) = false;
  bool body_done_ SFT_GUARDED_BY(mutex_) = false;
  size_t unsent_ SFT_GUARDED_BY(mutex_) = 0;
  std::function<void()> moved_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
