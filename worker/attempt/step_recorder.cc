#include "worker/attempt/step_recorder.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/utf8.h"
#include "common/data/gzip_parts.h"
#include "common/io/file.h"
#include "common/rpc/channel.h"
#include "worker/channel/flight_record.h"
#include "worker/channel/step_table.h"

namespace sft::worker {
namespace {

// How often it looks for tables, and asks the shim for the ranks that have ended; and how often it
// says that it waits, which shows it when nobody waits for the answer any more.
constexpr std::chrono::milliseconds kLook{100};
constexpr std::chrono::seconds kAskShim{1}, kSay{2};
constexpr int64_t kMostTableBytes = 1 << 20;

void FillTable(const channel::StepTable& table, v1::RankProfile& profile) {
  profile.set_rank(table.rank);
  profile.set_device(table.device);
  profile.set_first_step(table.first_step);
  profile.set_steps(static_cast<int32_t>(table.steps));
  profile.set_seconds(table.seconds);
  for (const channel::TimeShare& share : table.shares) {
    v1::ProfileShare& added = *profile.add_shares();
    added.set_kind(share.kind);
    added.set_seconds(share.seconds);
  }
  profile.set_hidden_communication_seconds(table.hidden_communication);
  profile.set_step_seconds_before(table.step_before);
  profile.set_stall_seconds(table.stall);
  profile.set_events(table.events);
  profile.set_events_left_out(table.events_left_out);
  for (const std::string& note : table.notes) profile.add_notes(note);
}

// One recording, piece by piece.
class StepRecording {
 public:
  StepRecording(const NodeSetup& setup, ShimHost& shims, Clock& clock,
                const v1::RecordSteps& request)
      : setup_(setup),
        shims_(shims),
        clock_(clock),
        uid_(request.attempt_uid()),
        attempt_dir_(setup.AttemptDir(uid_)),
        id_(RandomId("record")),
        steps_(request.steps()) {
    for (const int rank : request.ranks()) ranks_.push_back({.rank = rank});
  }
  ~StepRecording() {
    const RankRights rights(setup_.rank_user);
    const absl::Status removed = io::RemoveAll(channel::RecordingFolder(attempt_dir_, id_));
    if (!removed.ok()) spdlog::warn("attempt {}: {}", uid_, Message(removed));
  }

  // Makes the folders and asks the ranks.
  absl::Status Begin() {
    SFT_RETURN_IF_ERROR(MakeFolders());
    SFT_ASSIGN_OR_RETURN(const channel::Answer answer,
                         Ask({.command = "profile", .id = id_, .steps = steps_}));
    if (!answer.ok) {
      return FailedPrecondition("the job was started by a release that records no steps: " +
                                answer.error);
    }
    if (answer.status.state == "running") return absl::OkStatus();
    return FailedPrecondition("the job's processes are " + answer.status.state);
  }

  // The next piece of the answer; empty at the end.
  absl::StatusOr<std::string> Next(const std::atomic<bool>& ending) {
    v1::RecordedPiece piece;
    if (!Recorded()) {
      SFT_RETURN_IF_ERROR(Await(ending));
      if (!Recorded()) {
        piece.set_waiting(Waiting());
        return piece.SerializeAsString();
      }
    }
    if (tables_sent_ < ranks_.size()) {
      const channel::StepTable& table = ranks_[tables_sent_++].table;
      FillTable(table, *piece.mutable_rank());
      piece.set_trace_crc32(table.crc32);
      piece.set_trace_text_bytes(table.text_bytes);
      return piece.SerializeAsString();
    }
    return NextOfTraces(std::move(piece));
  }

 private:
  struct Rank {
    int rank = 0;
    bool recorded = false;
    channel::StepTable table;
    io::UniqueFd trace;
    int64_t sent = 0;
  };

  std::string FolderOf(const Rank& rank) const {
    return channel::RecordingFolder(attempt_dir_, id_, rank.rank);
  }
  bool Recorded() const { return std::ranges::all_of(ranks_, &Rank::recorded); }

  absl::Status MakeFolders() {
    const RankRights rights(setup_.rank_user);
    const auto names = io::ListDir(attempt_dir_);
    if (!names.ok()) return FailedPrecondition("the job does not run here");
    for (const std::string& name : *names) {
      if (!name.starts_with("profile-")) continue;
      SFT_RETURN_IF_ERROR(io::RemoveAll(attempt_dir_ + "/" + name));
    }
    for (const Rank& rank : ranks_) SFT_RETURN_IF_ERROR(io::MakeDirs(FolderOf(rank)));
    return absl::OkStatus();
  }

  absl::StatusOr<channel::Answer> Ask(const channel::Command& command) const {
    const RankRights rights(setup_.rank_user);
    return shims_.Ask(fmt::format("{}/run/{}.sock", setup_.data_dir, uid_), command);
  }

  absl::Status Await(const std::atomic<bool>& ending) {
    const MonoTime until = clock_.Mono() + kSay;
    while (clock_.Mono() < until) {
      if (ending) return Unavailable("the worker ends");
      for (Rank& rank : ranks_) {
        if (!rank.recorded) SFT_RETURN_IF_ERROR(Look(rank));
      }
      if (Recorded()) return absl::OkStatus();
      SFT_RETURN_IF_ERROR(CheckAlive());
      clock_.Sleep(kLook);
    }
    return absl::OkStatus();
  }

  absl::Status Look(Rank& rank) {
    const RankRights rights(setup_.rank_user);
    const auto text =
        io::ReadFile(FolderOf(rank) + "/table.json", kMostTableBytes, io::Links::kRefuse);
    if (absl::IsNotFound(text.status())) return absl::OkStatus();
    SFT_RETURN_IF_ERROR(text.status());
    SFT_ASSIGN_OR_RETURN(rank.table, channel::ParseStepTable(*text));
    const std::string who = fmt::format("rank {}: ", rank.rank);
    if (!rank.table.error.empty()) return FailedPrecondition(who + rank.table.error);
    if (rank.table.rank != rank.rank || rank.table.trace_bytes > data::kMostTraceBytes) {
      return Internal(who + "its table is not one of its own recording");
    }
    SFT_ASSIGN_OR_RETURN(rank.trace,
                         io::OpenForRead(FolderOf(rank) + "/trace", io::Links::kRefuse));
    rank.recorded = true;
    return absl::OkStatus();
  }

  absl::Status CheckAlive() {
    if (clock_.Mono() - asked_at_ < kAskShim) return absl::OkStatus();
    asked_at_ = clock_.Mono();
    const absl::StatusOr<channel::Answer> answer = Ask({.command = "status"});
    if (!answer.ok()) return Unavailable("the job's processes have ended");
    for (const channel::ShimStatus::Process& process : answer->status.processes) {
      for (Rank& rank : ranks_) {
        if (process.rank != rank.rank || !process.exited || rank.recorded) continue;
        // It may have written its table as the last thing.
        SFT_RETURN_IF_ERROR(Look(rank));
        if (!rank.recorded) {
          return Unavailable(
              fmt::format("rank {} ended before its steps were recorded", rank.rank));
        }
      }
    }
    return absl::OkStatus();
  }

  // "rank 1: step 12 of 40: waits in all-reduce #17 (4096 bytes, group world)"
  std::string Waiting() const {
    const auto rank = std::ranges::find(ranks_, false, &Rank::recorded);
    const RankRights rights(setup_.rank_user);
    const auto flight = channel::ReadFlightRecord(channel::FlightPath(attempt_dir_, rank->rank));
    return ToUtf8(fmt::format("rank {}: {}", rank->rank,
                              flight.ok() ? flight->Describe() : "has not begun yet"));
  }

  absl::StatusOr<std::string> NextOfTraces(v1::RecordedPiece piece) {
    const auto rank = std::ranges::find_if(
        ranks_, [](const Rank& each) { return each.sent < each.table.trace_bytes; });
    if (rank == ranks_.end()) return std::string();
    const int64_t size = std::min(rpc::kChunkBytes, rank->table.trace_bytes - rank->sent);
    std::string& data = *piece.mutable_trace();
    data.resize(static_cast<size_t>(size));
    SFT_ASSIGN_OR_RETURN(const size_t got, io::ReadAt(rank->trace.get(), rank->sent, data.data(),
                                                      data.size(), "the trace"));
    if (got != data.size()) return Internal("the trace is shorter than its table says");
    rank->sent += size;
    return piece.SerializeAsString();
  }

  const NodeSetup& setup_;
  ShimHost& shims_;
  Clock& clock_;
  const std::string uid_, attempt_dir_, id_;
  const int64_t steps_;
  std::vector<Rank> ranks_;
  size_t tables_sent_ = 0;
  MonoTime asked_at_{};
};

// An id is a part of a path.
absl::Status Check(const v1::RecordSteps& request) {
  const std::vector<std::string> ids = IdsInPath("attempt", request.attempt_uid());
  if (ids.size() != 1 || ids[0] != request.attempt_uid()) return InvalidArgument("no attempt");
  return request.ranks().empty() ? InvalidArgument("no rank") : absl::OkStatus();
}

}  // namespace

void StepRecorder::Record(const v1::RecordSteps& request) {
  threads_.Start(kMostAtOnce, [this, request](size_t others) {
    Run(request, /*refused=*/others >= kMostAtOnce);
  });
}

void StepRecorder::Run(const v1::RecordSteps& request, bool refused) {
  absl::Status ready = Check(request);
  if (refused) ready = ResourceExhausted("it records as many jobs as it can: try again later");
  const bool taken = ready.ok() && Take(request.attempt_uid());
  if (ready.ok() && !taken) ready = Aborted("the job is being recorded already");
  {
    StepRecording recording(setup_, shims_, clock_, request);
    if (ready.ok()) ready = recording.Begin();
    (void)server_.SendLines(request.request(), [&]() -> absl::StatusOr<std::string> {
      if (!ready.ok()) return ready;
      return recording.Next(ending_);
    });
  }
  if (taken) Release(request.attempt_uid());
}

// The server asks for one at a time: the caller of one that is there has the end of it, or has
// gone, which is seen at the latest when what follows the next thing to say is said.
bool StepRecorder::Take(const std::string& attempt_uid) {
  const MonoTime until = clock_.Mono() + 3 * kSay;
  do {
    {
      const MutexLock lock(mutex_);
      if (recorded_.insert(attempt_uid).second) return true;
    }
    clock_.Sleep(kLook);
  } while (!ending_ && clock_.Mono() < until);
  return false;
}

void StepRecorder::Release(const std::string& attempt_uid) {
  const MutexLock lock(mutex_);
  recorded_.erase(attempt_uid);
}

}  // namespace sft::worker
