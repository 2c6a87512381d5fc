#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "server/http/http_parser.h"
#include "server/http/http_socket.h"
#include "server/http/http_stream.h"
#include "server/http/http_times.h"

namespace sft::server {

// Answers requests. Called by the server's one thread, which it must not block.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Whoever keeps the stream answers it.
  virtual void Handle(std::shared_ptr<HttpStream> stream) = 0;
};

// How long a server waits for its callers, and how much it keeps of them.
struct HttpLimits {
  // From the connection, or the first byte of a later request, to the end of the head.
  Nanos head = std::chrono::seconds(10);
  // Between two requests.
  Nanos idle = std::chrono::seconds(60);
  // For a body, beside a second for each KiB of it that has come.
  Nanos body = std::chrono::seconds(30);
  // For a caller who reads fewer than these bytes of what is sent, while there are more.
  Nanos send = std::chrono::seconds(30);
  size_t least_sent = 8 << 10;
  // Of an event stream: when a line is sent that says nothing.
  Nanos silence = std::chrono::seconds(15);
  size_t bodies = size_t{256} << 20;  // bytes of all bodies that are being read
};

// One connection and its requests, one after the other. Of the server's thread.
class HttpConnection {
 public:
  // What all connections of a server share; borrowed.
  struct Shared {
    HttpHandler& handler;
    const HttpLimits& limits;
    std::shared_ptr<HttpWake> wake;
    HttpTimes* times = nullptr;  // null: nobody counts
    size_t body_bytes = 0;       // of HttpLimits::bodies
  };

  HttpConnection(Shared& shared, uint64_t id, HttpSocket socket, MonoTime now);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;

  // Reads, answers and writes as far as that is possible now.
  void Move(bool readable, bool writable, MonoTime now);
  // The time has come for which it has asked.
  void PassTime(MonoTime now);
  // Closes it, whatever it does.
  void End() { stage_ = Stage::kOver; }
  // When that is; none: MonoTime::max().
  MonoTime wakes_at() const;

  int fd() const { return socket_.fd(); }
  const HttpSocket& socket() const { return socket_; }
  bool wants_read() const;
  bool wants_write() const { return wants_write_; }
  bool over() const { return stage_ == Stage::kOver; }
  // Nothing of a request is being done, or not all of it has come: the first to go where there are
  // too many.
  bool idle() const {
    return stage_ == Stage::kHead || (body_wanted_.has_value() && !body_wanted_->piece);
  }
  MonoTime since() const { return since_; }

 private:
  enum class Stage {
    kHead,    // waits for a head, or the rest of it
    kAnswer,  // a request is being answered
    kLinger,  // all is sent: what comes is thrown away, as it would make the kernel drop the answer
    kOver,
  };

  void Read(MonoTime now);
  void Write(MonoTime now);
  void WaitForCaller(MonoTime now);
  void Advance(MonoTime now);
  // Whether another request was there.
  bool TakeHead(MonoTime now);
  void TakeNews(MonoTime now);
  void TakeBody(MonoTime now);
  void EndBody(absl::StatusOr<std::string> body);
  // By when more of the body must have come.
  MonoTime body_due() const;
  void Answered(MonoTime now);
  void Refuse(const HttpResponse& response, MonoTime now);
  void Linger(MonoTime now);
  void FinishLinger();

  Shared& shared_;
  const uint64_t id_;
  HttpSocket socket_;
  Stage stage_ = Stage::kHead;
  MonoTime since_;       // it is in this stage, or the body's first byte was waited for
  bool served_ = false;  // a request before this one
  bool read_waits_for_write_ = false, wants_write_ = false, ended_ = false, closed_sending_ = false;

  std::string in_;
  size_t scanned_ = 0;  // of in_, for the end of the head
  std::string out_;
  size_t sent_ = 0;     // of out_
  size_t refusal_ = 0;  // bytes of out_ that no stream has written
  // All was sent then, or as much as a caller has to read in time; and since then.
  MonoTime sent_at_;
  size_t sent_since_ = 0;

  std::unique_ptr<HttpParser> parser_;
  std::shared_ptr<HttpStream> stream_;
  bool answered_ = false, cut_ = false, closes_ = false, events_ = false;
  MonoTime alarm_ = MonoTime::max();
  std::optional<HttpStream::WantedBody> body_wanted_;
  std::string body_;
  uint64_t body_received_ = 0;  // all of it that has come, given away or not
  MonoTime body_asked_;         // for it, or for its next piece
  bool body_begun_ = false;
  MonoTime heard_at_;  // all that was read of the request had come
};

}  // namespace sft::server
