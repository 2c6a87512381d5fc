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

// In the place of a rank: what the worker itself says about the attempt (node.events).
inline constexpr int kNodeStream = -2;

// Events as points of the curve, without their time.
v1::Metric MetricOf(const channel::StepEvent& step);
v1::Metric MetricOf(const channel::EvalEvent& eval);

// Carries one attempt's logs and events from their files to the server, in bounded chunks. The
// files are the queue: nothing is kept in memory, and after a restart of either side the server
// says from where to go on. One thread.
class Shipper {
 public:
  // One process's two files.
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
    std::optional<RankUser> rank_user = std::nullopt;  // who writes the files
  };

  // `server` is borrowed. `on_event` sees each event of the node as it is shipped, which after a
  // restart of the worker is only what the server lacks.
  Shipper(Identity identity, const std::vector<Source>& sources, ServerApi& server,
          std::function<void(int rank, const channel::Event&)> on_event);

  // Ships at most one chunk of each file. `more`: a file had more than that. An error is that of
  // the first call that failed; the other files were tried all the same.
  struct Progress {
    bool more = false;
    // With `final`: everything is acknowledged, ends of file included.
    bool complete = false;
  };
  // `final`: the processes have ended, the files do not grow any more.
  absl::StatusOr<Progress> ShipOnce(bool final);
  // After the last of them was acknowledged: whether the server still has all events. What it has
  // lost meanwhile is shipped by the next ShipOnce.
  absl::StatusOr<bool> Confirm();
  // Ships nothing more of the files that failed last; what of them: "rank-0.log from byte 42 on".
  std::vector<std::string> GiveUp();

 private:
  struct Stream {
    int rank;
    std::string path;
    bool events;
    int64_t offset = -1;  // -1: ask the server
    bool finished = false;
    bool left_out = false;  // the rest of it, for good
    bool failed = false;    // at the last try
  };

  absl::Status ShipLog(Stream& stream, bool final, bool& more);
  absl::Status ShipEvents(Stream& stream, bool final, bool& more);
  // The events in whole lines of `stream`, into `request` what the server needs of them.
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

// The parsed form that the server needs of an event of that rank; no body when it needs none. Of
// the ranks' steps only rank 0's count: they are figures over all ranks.
v1::RankEvent ToRankEvent(int rank, const channel::Event& event, std::string_view line);

}  // namespace sft::worker
