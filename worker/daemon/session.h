#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "sft/v1/worker_service.grpc.pb.h"
#include "worker/base/backoff.h"
#include "worker/daemon/agent.h"

namespace sft::worker {

// The worker's end of the standing stream. Dials, registers, passes on what the server desires,
// sends the observed set when it changes and at each heartbeat; when the stream breaks it starts
// again, for ever, with growing pauses. Jobs do not depend on it. Only when the server says that
// another worker has taken this one's place it ends, and with it what runs here: the worker stays
// and says so.
class Session {
 public:
  using MakeRegister = std::function<v1::Register()>;
  using Channels = std::function<std::shared_ptr<grpc::Channel>()>;
  using OnFetchFile = std::function<void(const v1::FetchFile&)>;

  // `agent` is borrowed. `channels` is asked at each dialling. `on_fetch_file` is called on the
  // reading thread and must not block.
  Session(Channels channels, Agent& agent, MakeRegister make_register, OnFetchFile on_fetch_file);
  ~Session();

  void Start();
  // Ends the stream: the next one is of the channel that there is then.
  void Redial();
  // Ends the stream and the threads.
  void Stop();

 private:
  using Stream = grpc::ClientReaderWriter<v1::WorkerMessage, v1::ServerMessage>;

  void Loop();
  // One life of the stream; true when the server had accepted the worker.
  bool RunOnce();
  // Takes note of a refusal. Told once, not at every try.
  void Refused(const v1::Welcome& welcome);
  // Waits for the Welcome; its heartbeat interval, or zero when refused or broken.
  std::chrono::seconds ReadWelcome(Stream& stream);
  void ReadLoop(Stream& stream);
  void WriteLoop(Stream& stream, std::chrono::seconds heartbeat, const std::atomic<bool>& ended);
  // When the report of that number was sent; it and older ones are forgotten.
  void TakeAnswer(int64_t sequence);

  const Channels channels_;
  Agent& agent_;
  const MakeRegister make_register_;
  const OnFetchFile on_fetch_file_;
  std::thread thread_;
  bool answers_ = false;   // of the session thread: this server answers each report
  std::string last_end_;   // of the session thread: why the stream ended, as logged last,
  std::string refused_;    // and why it was refused
  bool replaced_ = false;  // of the session thread: for good

  Mutex mutex_;
  CondVar stopped_;
  bool stopping_ SFT_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ SFT_GUARDED_BY(mutex_) = nullptr;
  // Reports of this stream that have no answer yet, and when they were sent.
  std::map<int64_t, MonoTime> unanswered_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::worker
