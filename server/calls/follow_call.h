#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/async_stream.h>

#include <atomic>
#include <deque>
#include <memory>

#include "common/base/mutex.h"
#include "server/calls/followers.h"
#include "server/calls/queued_call.h"
#include "server/door/following.h"
#include "server/door/lookers.h"

namespace sft::server {

// One call that follows something. The library brings it with its request: a call that sends none
// costs the server no more than its connection does. A looker then looks for it when it comes,
// when what it follows has changed, when its last answer has gone out and when its caller has gone;
// answers are written one at a time, and nobody looks while one is on its way: who reads slowly
// delays himself. It ends in a look.
class FollowCall final : public QueuedCall, private Lookers::Task, private Exchange {
 public:
  // Waits for the next caller of the method.
  static void Accept(Followers& followers, const Method& method);

 private:
  FollowCall(Followers& followers, const Method& method);

  // Called by the queue's thread.
  void OnAccepted(bool ok);
  void OnWritten(bool ok) SFT_EXCLUDES(mutex_);
  void OnEnded();

  // Lookers::Task, one look at a time.
  void Look() override SFT_EXCLUDES(mutex_);
  void Hold() override { QueuedCall::Hold(); }
  void Release() override { QueuedCall::Release(); }

  // Exchange, for looks.
  const CallOrigin& origin() const override { return origin_; }
  absl::StatusOr<bool> Read(google::protobuf::Message& message) override;
  // Goes out after the look.
  bool Write(const google::protobuf::Message& message) override;
  bool Gone() const override { return gone_; }

  // The parts of a look.
  Follower::Next LookOnce();
  void Finish();

  Followers& followers_;
  const Method& method_;
  grpc::ServerContext context_;
  grpc::ByteBuffer request_;
  grpc::ServerAsyncWriter<grpc::ByteBuffer> stream_;
  Event accepted_, written_, finished_, ended_;
  CallOrigin origin_;
  std::atomic<bool> gone_{false};

  // Touched by looks alone.
  std::unique_ptr<Following> call_;
  Follower::Next next_ = Follower::Next::kAgain;
  std::deque<grpc::ByteBuffer> answers_;  // of the last look; front: on its way

  Mutex mutex_;
  bool writing_ SFT_GUARDED_BY(mutex_) = false;
  bool missed_ SFT_GUARDED_BY(mutex_) = false;  // a look came while it wrote
};

}  // namespace sft::server
