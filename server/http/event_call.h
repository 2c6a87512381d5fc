#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "server/door/following.h"
#include "server/door/lookers.h"
#include "server/door/web_sessions.h"
#include "server/http/http_stream.h"

namespace sft::server {

// Who calls over HTTP.
struct WebCaller {
  CallOrigin origin;
  std::string session;  // the secret of the session, where it is by that
  // Whether that has ended.
  bool LoggedOut(WebSessions& sessions) const { return !session.empty() && !sessions.Has(session); }
};

// What looks for the calls that follow over HTTP. All borrowed, and outlive the calls.
struct EventCalls {
  Door& door;
  ChangeHub& hub;
  WebSessions& sessions;
  Clock& clock;
  Lookers lookers{clock};
  std::atomic<int> live = 0;  // calls that have not ended
};

// One call that follows, sent as an event stream. It holds no thread: a looker looks for it when
// what it follows has changed, when all that was written is sent, and when the caller has gone; who
// reads slowly delays himself. Its messages are events without a name; "end" is the last one, or
// "error" with what an answer would say. It keeps itself until it has ended.
class EventCall final : private Lookers::Task, private Exchange {
 public:
  // How a call's follower writes events of its own form, in place of messages, during a look.
  class Sink {
   public:
    explicit Sink(EventCall& call) : call_(call) {}
    void Write(std::string_view name, std::string_view id, std::string_view data);
    // Looks no later than then.
    void LookAt(MonoTime at);
    MonoTime now() const;

   private:
    EventCall& call_;
  };

  // Begins it: `body` is the request in JSON.
  static void Start(EventCalls& calls, std::shared_ptr<HttpStream> stream, WebCaller caller,
                    std::shared_ptr<const Method> method, std::string body);
  // One whose method is made for it, and writes to the sink. Each event is followed by a pause.
  static void Start(EventCalls& calls, std::shared_ptr<HttpStream> stream, WebCaller caller,
                    const std::function<Method(Sink sink)>& make, Nanos pause);

 private:
  EventCall(EventCalls& calls, std::shared_ptr<HttpStream> stream, WebCaller caller);
  static void Begin(std::shared_ptr<EventCall> call);

  // Lookers::Task, one look at a time.
  void Look() override;
  void Hold() override { ++holds_; }
  void Release() override;

  // Exchange, for looks.
  const CallOrigin& origin() const override { return caller_.origin; }
  absl::StatusOr<bool> Read(google::protobuf::Message& message) override;
  bool Write(const google::protobuf::Message& message) override;
  bool Gone() const override;

  // Whether it is to be looked at now.
  bool Due();
  void Send(Follower::Next next);
  void Finish();

  EventCalls& calls_;
  const std::shared_ptr<HttpStream> stream_;
  const WebCaller caller_;
  std::shared_ptr<const Method> method_;
  std::string body_;
  Nanos pause_{0};
  std::unique_ptr<Following> following_;

  // Touched by looks alone.
  std::string events_;  // of this look
  int count_ = 0;
  MonoTime not_before_{}, look_at_ = MonoTime::max();
  bool admitted_ = false;

  // Until it has ended one hold is its own; whoever lets go last frees it.
  std::atomic<int> holds_ = 1;
  std::shared_ptr<EventCall> self_;
};

}  // namespace sft::server
