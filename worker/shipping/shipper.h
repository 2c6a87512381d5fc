#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/base/rank_user.h"
#include "worker/channel/event.h"
#include "worker/transfer/server_api.h"

namespace sft::worker {

// Stands for a rank: the worker's own events about the attempt (node.events).
inline constexpr int kNodeStream = -2;

// Events as points of the curve, without their time.
v1::Metric MetricOf(const channel::StepEvent& step);
v1::Metric MetricOf(const channel::AnswersEvent& answers);
v1::Metric MetricOf(const channel::EvalEvent& eval);

// Ships one attempt's logs and events from their files to the server, in bounded chunks. The files
// are the queue: nothing is kept in memory, and after a restart of either side the server says
// where to continue. One thread.
class Shipper {
 public:
  // The two files of one process.
  struct Source {
    int rank = -1;     // -1: prepare; kNodeStream
    std::string name;  // "prepare", "rank-0", "node"
    bool log = true;   // has a log beside its events
  };
  struct Identity {
    std::string attempt_uid;
    int64_t epoch = 0;
    std::string node;
    std::string dir;
    std::optional<RankUser> rank_user = std::nullopt;  // the user who writes the files
  };

  // `server` is borrowed. `on_event` is called for each event of the node as it is shipped; after a
  // restart of the worker only for those that the server lacks.
  Shipper(Identity identity, const std::vector<Source>& sources, ServerApi& server,
          std::function<void(int rank, const channel::Event&)> on_event);

  // Ships at most one chunk of each file. `more`: a file had more than that. The error is that of
  // the first failing call; the other files were tried all the same.
  struct Progress {
    bool more = false;
    // With `final`: everything is acknowledged, including ends of files.
    bool complete = false;
  };
  // `final`: the processes have ended, and the files do not grow any more.
  absl::StatusOr<Progress> ShipOnce(bool final);
  // Called after the last event was acknowledged: true if the server still has all events. The next
  // ShipOnce ships those that it has lost meanwhile.
  absl::StatusOr<bool> Confirm();
  // Stops shipping the files that failed last; returns the parts not shipped: "rank-0.log from byte
  // 42 on".
  std::vector<std::string> GiveUp();

 private:
  struct Stream {
    int rank;
    std::string path;
    bool events;
    int64_t offset = -1;  // -1: ask the server
    bool finished = false;
    bool left_out = false;  // the rest is not shipped
    bool failed = false;    // in the last try
  };

  absl::Status ShipLog(Stream& stream, bool final, bool& more);
  absl::Status ShipEvents(Stream& stream, bool final, bool& more);
  // Parses the events in whole lines of `stream`, and adds those that the server needs to
  // `request`.
  std::vector<channel::Event> ReadEvents(const Stream& stream, std::string_view lines,
                                         v1::AppendEventsRequest& request) const;
  absl::Status AskOffset(Stream& stream);
  v1::AppendLogRequest LogRequest(const Stream& stream) const;
  v1::AppendEventsRequest EventsRequest(const Stream& stream) const;

  const Identity identity_;
  ServerApi& server_;
  const std::function<void(int, const channel::Event&)> on_event_;
  std::vector<Stream> streams_;
};

// The parsed form of an event of that rank for the server; no body when the server does not need
// it. Of step events of another rank than 0 only what is its own: the rest is over all ranks.
v1::RankEvent ToRankEvent(int rank, const channel::Event& event, std::string_view line);

}  // namespace sft::worker
