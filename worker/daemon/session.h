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

// The worker's end of the session stream. Dials, registers, passes on the desired set, and sends
// the observed set when it changes and at each heartbeat. When the stream breaks it dials again,
// for ever, with growing pauses; jobs do not depend on it. Only when the server says that another
// worker has replaced this one does it end the session and everything that runs here; the process
// stays and reports why.
class Session {
 public:
  using MakeRegister = std::function<v1::Register()>;
  using Channels = std::function<std::shared_ptr<grpc::Channel>()>;
  using OnFetchFile = std::function<void(const v1::FetchFile&)>;
  using OnModelRequest = std::function<void(const v1::ModelRequest&)>;
  using OnAsk = std::function<void(const v1::Ask&)>;
  using OnRecordSteps = std::function<void(const v1::RecordSteps&)>;
  // Whether the server that has sent it may be obeyed; an error says why not.
  using OnWelcome = std::function<absl::Status(const v1::Welcome&)>;
  using OnLost = std::function<void()>;
  using OnDismissed = std::function<void()>;

  // `agent` is borrowed. `channels` is called at each dial. `on_fetch_file`, `on_model_request`,
  // `on_ask`, `on_dismissed` and `on_record_steps` are called on the reading thread and must not
  // block. `on_welcome` is called before anything that the server wants is done, and `on_lost` when
  // a stream has ended, before the next dial, both on the session's thread.
  Session(Channels channels, Agent& agent, MakeRegister make_register, OnFetchFile on_fetch_file,
          OnModelRequest on_model_request = {}, OnAsk on_ask = {}, OnWelcome on_welcome = {},
          OnLost on_lost = {}, OnDismissed on_dismissed = {}, OnRecordSteps on_record_steps = {});
  ~Session();

  void Start();
  // Ends the stream; the next one uses the current channel.
  void Redial();
  // Ends the stream and the threads.
  void Stop();

 private:
  using Stream = grpc::ClientReaderWriter<v1::WorkerMessage, v1::ServerMessage>;

  void Loop();
  // Runs one stream to its end; true when the server had accepted the worker.
  bool RunOnce();
  // Records a refusal; the same one is logged once, not at every try.
  void Refused(const v1::Welcome& welcome);
  // Waits for the Welcome; returns its heartbeat interval, or zero when refused or broken.
  std::chrono::seconds ReadWelcome(Stream& stream);
  void ReadLoop(Stream& stream);
  void WriteLoop(Stream& stream, std::chrono::seconds heartbeat, const std::atomic<bool>& ended);
  // Records when the report with that number was sent; it and older ones are forgotten.
  void TakeAnswer(int64_t sequence);

  const Channels channels_;
  Agent& agent_;
  const MakeRegister make_register_;
  const OnFetchFile on_fetch_file_;
  const OnModelRequest on_model_request_;
  const OnAsk on_ask_;
  const OnWelcome on_welcome_;
  const OnLost on_lost_;
  const OnDismissed on_dismissed_;
  const OnRecordSteps on_record_steps_;
  std::thread thread_;
  bool answers_ = false;   // session thread only: this server answers each report
  std::string last_end_;   // session thread only: why the stream ended, as last logged,
  std::string refused_;    // and why it was refused,
  std::string disobeyed_;  // or the server was
  bool replaced_ = false;  // session thread only: refused for good

  Mutex mutex_;
  CondVar stopped_;
  bool stopping_ SFT_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ SFT_GUARDED_BY(mutex_) = nullptr;
  // Unanswered reports of this stream, and when they were sent.
  std::map<int64_t, MonoTime> unanswered_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::worker
