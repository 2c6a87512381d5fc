#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "server/core/access.h"
#include "server/core/call_times.h"
#include "server/core/failed_calls.h"
#include "server/door/exchange.h"
#include "server/store/store.h"

namespace sft::server {

// Who calls an open server.
inline constexpr char kLocalPrincipal[] = "local";

// What all calls share: who is who, how many streams there are, and what was refused.
// Whether one may be made is decided by the door (door.h) with the method's rule. A server on
// loopback without TLS is open: everybody on the machine is the local user, who may do everything.
// Every other server asks for TLS and a token, or a node's certificate, before anything else looks
// at a call. Thread-safe.
class Gate {
 public:
  Gate(Access& access, Store& store, Clock& clock, bool open)
      : access_(access), store_(store), clock_(clock), open_(open), failed_(store, clock) {}

  // By what it brings: its certificate, its "authorization" or its session.
  absl::StatusOr<Principal> Authenticate(const CallOrigin& origin) const;
  bool open() const { return open_; }
  Store& store() { return store_; }
  int64_t now_us() const { return UnixMicros(clock_.Wall()); }

  // Streams at once: of all callers, of one of them, and of the library's own services
  // (reflection). Those that do not follow hold a thread each; the rest of the threads is for plain
  // calls.
  static constexpr int kMaxStreams = 1300, kMaxStreamsOfOne = 100, kMaxStreamsOfLibrary = 8;
  // A stream of `who` begins, which EndStream ends. RESOURCE_EXHAUSTED at `limit`, and at the limit
  // of all. `kind`: the method, for figures.
  absl::Status BeginStream(const std::string& who, int limit, const std::string& kind);
  void EndStream(const std::string& who, const std::string& kind);
  // Those that are open, by kind.
  std::map<std::string, int> streams() const;

  // Calls at once that anybody may make (Caller::kAnybody): of all, and of one subscriber
  // (SubscriberOf) that is not loopback, where a proxy may be.
  static constexpr int kMostOfAnybody = 16, kMostOfSubscriber = 4;
  // A place among them, kept while what it returns lives. RESOURCE_EXHAUSTED where there is none.
  // `peer`: "ipv4:10.0.0.3:4711".
  absl::StatusOr<std::shared_ptr<void>> EnterAsAnybody(const std::string& peer);

  // How long calls took.
  CallTimes& times() { return times_; }
  MonoTime now() const { return clock_.Mono(); }
  // What is to be kept of calls that are refused or fail.
  FailedCalls& failed() { return failed_; }
  // True at most every few seconds for a key: what is refused again and again is told once.
  bool IsNews(const std::string& key);

 private:
  Access& access_;
  Store& store_;
  Clock& clock_;
  const bool open_;
  FailedCalls failed_;
  CallTimes times_;
  mutable Mutex mutex_;
  std::map<std::string, MonoTime> told_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, int> streams_of_ SFT_GUARDED_BY(mutex_);  // none at 0
  std::map<std::string, int> streams_by_kind_ SFT_GUARDED_BY(mutex_);
  int streams_ SFT_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> anybody_at_ SFT_GUARDED_BY(mutex_);  // by subscriber; none at 0
  int anybody_ SFT_GUARDED_BY(mutex_) = 0;
};

}  // namespace sft::server
