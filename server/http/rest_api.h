#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "server/door/hands.h"
#include "server/door/methods.h"
#include "server/http/event_call.h"
#include "sft/v1/data_service.pb.h"

namespace sft::server {

// The REST API: POST /api/v1/SERVICE/METHOD, a second transport of the door for the methods whose
// rule is for users, and GET /api/v1/feed (docs/rest.md). Plain calls run on a few threads; uploads
// and those that send several messages on some others, or, where they follow something, on none.
// Thread-safe.
class RestApi {
 public:
  static constexpr std::string_view kRoot = "/api/v1/";
  static constexpr size_t kMostBodyBytes = 1 << 20, kMostOfAnybody = 32 << 10;
  static constexpr int kThreads = 16, kStreamThreads = 32;
  // Of kStreamThreads, and of those that wait for one, one caller's.
  static constexpr int kStreamThreadsOfOne = 8;
  // Calls that wait for a thread; more are told to come again.
  static constexpr int kMostWaiting = 256;

  // All borrowed.
  RestApi(Door& door, const Methods& methods, ChangeHub& hub, WebSessions& sessions, Clock& clock);
  // When all streams are gone. Returns when no call is left.
  ~RestApi();

  // A request whose path begins with kRoot. In the HTTP server's thread.
  void Handle(std::shared_ptr<HttpStream> stream, WebCaller caller);

  // Whether a method is served: those of users, with one request.
  static bool Serves(const Method& method);
  // Or as an upload: the fields of its first message are the query, and the body is what follows.
  static bool ServesUpload(const Method& method);

 private:
  void Run(std::shared_ptr<HttpStream> stream, WebCaller caller, const Method& method,
           std::string body);
  void RunUnary(HttpStream& stream, const WebCaller& caller, const Method& method,
                const std::string& body);
  void RunStream(std::shared_ptr<HttpStream> stream, const WebCaller& caller, const Method& method,
                 const std::string& body);
  void HandleUpload(std::shared_ptr<HttpStream> stream, WebCaller caller, const Method& method);
  void RunUpload(std::shared_ptr<HttpStream> stream, const WebCaller& caller, const Method& method,
                 const v1::UploadBlobRequest& first);
  void HandleFeed(std::shared_ptr<HttpStream> stream, WebCaller caller);
  // A place among the caller's streams, kept while it lives. Null: it has too many.
  std::shared_ptr<void> TakeStreamThread(const WebCaller& caller) SFT_EXCLUDES(mutex_);
  // Gives work to a pool, unless too much waits there.
  void Give(Hands& hands, std::atomic<int>& waiting, std::shared_ptr<HttpStream> stream,
            std::function<void()> work);

  Door& door_;
  const Methods& methods_;
  const std::string life_;
  const HttpResponse description_;
  EventCalls events_;
  Mutex mutex_;
  std::map<std::string, int> streams_of_ SFT_GUARDED_BY(mutex_);  // none at 0
  std::atomic<int> waiting_ = 0, waiting_streams_ = 0;
  Hands hands_, stream_hands_;
};

}  // namespace sft::server
