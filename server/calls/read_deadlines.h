#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace sft::server {

// Ends calls whose client sends nothing for too long: who waits for a message holds a thread of the
// server, and the library's own reads have no deadline. Thread-safe.
class ReadDeadlines {
 public:
  ReadDeadlines(Clock& clock, Nanos patience);
  ~ReadDeadlines();
  ReadDeadlines(const ReadDeadlines&) = delete;

  // While it lives, its call waits for a message. One that waits for longer than the patience ends
  // with UNAVAILABLE, and its read returns false.
  class Wait {
   public:
    Wait(ReadDeadlines& deadlines, grpc::ServerContext& context);
    ~Wait();
    Wait(const Wait&) = delete;

   private:
    ReadDeadlines& deadlines_;
    grpc::ServerContext& context_;
  };

 private:
  void Loop() SFT_EXCLUDES(mutex_);
  void EndOverdue() SFT_REQUIRES(mutex_);

  Clock& clock_;
  const Nanos patience_;
  Mutex mutex_;
  CondVar changed_;
  std::map<grpc::ServerContext*, MonoTime> since_ SFT_GUARDED_BY(mutex_);
  bool closing_ SFT_GUARDED_BY(mutex_) = false;
  bool sleeps_ SFT_GUARDED_BY(mutex_) = false;  // until somebody waits
  std::thread thread_;
};

}  // namespace sft::server
