#include "server/jobs/profiling.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/clock.h"
#include "common/base/plain_text.h"
#include "common/data/gzip_parts.h"
#include "server/state/names.h"
#include "server/store/attempts.h"
#include "server/store/jobs.h"

namespace sft::server {
namespace {

// How long one node is listened to while others may have said something.
constexpr std::chrono::milliseconds kListen{200};
// The most that is passed on of what a node says; the rest is cut off.
constexpr int kMostShares = 32, kMostNotes = 16;
constexpr size_t kMostText = 500;

absl::Status CheckSteps(int steps) {
  if (steps >= 0 && steps <= Profiling::kMostSteps) return absl::OkStatus();
  return InvalidArgument(fmt::format("steps: 1 to {} can be recorded", Profiling::kMostSteps));
}

absl::StatusOr<std::set<int>> RanksOf(const v1::ProfileJobRequest& request, int world) {
  std::set<int> ranks(request.ranks().begin(), request.ranks().end());
  if (request.all_ranks()) {
    for (int rank = 0; rank < world; ++rank) ranks.insert(rank);
  }
  if (ranks.empty()) ranks.insert(0);
  if (static_cast<int>(ranks.size()) > Profiling::kMostRanks) {
    return InvalidArgument(
        fmt::format("ranks: at most {} are recorded at once, name some of the {}",
                    Profiling::kMostRanks, world));
  }
  for (const int rank : ranks) {
    if (rank >= 0 && rank < world) continue;
    return InvalidArgument(
        fmt::format("ranks: the job has no rank {}: its ranks are 0 to {}", rank, world - 1));
  }
  return ranks;
}

absl::Status CheckJob(const JobRecord& job) {
  if (job.kind != v1::Job::SFT) {
    return FailedPrecondition(
        fmt::format("job {} trains nothing: it has no steps to record", job.id));
  }
  if (IsTerminal(job.state) || job.state == JobState::kCancelling) {
    return FailedPrecondition(fmt::format("job {} is {}: only a running job can be profiled",
                                          job.id, ToString(job.state)));
  }
  if (job.state == JobState::kRunning) return absl::OkStatus();
  return FailedPrecondition(fmt::format("job {} is {} ({}): profile it when it runs", job.id,
                                        ToString(job.state),
                                        job.reason.empty() ? "it has not begun" : job.reason));
}

// What a node says is material.
v1::RankProfile Checked(v1::RankProfile profile) {
  profile.set_device(Plain(profile.device(), kMostText));
  while (profile.shares_size() > kMostShares) profile.mutable_shares()->RemoveLast();
  while (profile.notes_size() > kMostNotes) profile.mutable_notes()->RemoveLast();
  for (v1::ProfileShare& share : *profile.mutable_shares()) {
    share.set_kind(Plain(share.kind(), kMostText));
  }
  for (std::string& note : *profile.mutable_notes()) note = Plain(note, kMostText);
  return profile;
}

// What one node records.
class NodeRecording {
 public:
  NodeRecording(std::string node, std::set<int> ranks,
                std::unique_ptr<FileRelay::Transfer> transfer)
      : node_(std::move(node)),
        ranks_(std::move(ranks)),
        room_(static_cast<int64_t>(ranks_.size()) * data::kMostTraceBytes),
        transfer_(std::move(transfer)) {}

  bool has_tables() const { return ranks_.empty(); }
  const std::vector<data::TextSum>& sums() const { return sums_; }

  // Listens for a moment; what has come, if anything. An error when the node has been silent for
  // long.
  absl::StatusOr<std::optional<v1::RecordedPiece>> Hear(const FileRelay::Gone& gone) {
    const auto chunk = transfer_->Next(kListen, gone);
    if (absl::IsDeadlineExceeded(chunk.status())) {
      const bool patient = Clock::Real().Mono() - heard_ < FileRelay::kPatience;
      if (patient) return std::optional<v1::RecordedPiece>();
      return Unavailable(fmt::format(
          "{} does not answer; a worker of an earlier release cannot record steps", node_));
    }
    // What the node could not do, in its words.
    if (absl::IsNotFound(chunk.status())) return FailedPrecondition(Message(chunk.status()));
    SFT_RETURN_IF_ERROR(chunk.status());
    heard_ = Clock::Real().Mono();
    std::optional<v1::RecordedPiece> piece(std::in_place);
    if (!piece->ParseFromString(chunk->data())) return Wrong();
    if (!chunk->data().empty()) {
      if (piece->has_rank()) SFT_RETURN_IF_ERROR(Note(*piece));
      room_ -= static_cast<int64_t>(piece->trace().size());
      if (room_ < 0) return Wrong();
      return piece;
    }
    if (!has_tables()) return Unavailable(node_ + " ended its recording early");
    ended_ = true;
    return piece;
  }
  bool ended() const { return ended_; }

 private:
  absl::Status Note(const v1::RecordedPiece& piece) {
    if (ranks_.erase(piece.rank().rank()) == 0 || piece.trace_text_bytes() < 0) return Wrong();
    sums_.push_back({piece.trace_crc32(), piece.trace_text_bytes()});
    return absl::OkStatus();
  }
  absl::Status Wrong() const { return Internal(node_ + " sends what is no recording"); }

  std::string node_;
  std::set<int> ranks_;  // whose tables have not come
  int64_t room_;         // for bytes of traces
  std::unique_ptr<FileRelay::Transfer> transfer_;
  std::vector<data::TextSum> sums_;
  MonoTime heard_ = Clock::Real().Mono();
  bool ended_ = false;
};

absl::Status ReaderGone() { return absl::CancelledError("the caller has gone"); }

// Until all tables are there.
absl::Status PassTables(std::vector<NodeRecording>& nodes, const Profiling::Take& take,
                        const FileRelay::Gone& gone) {
  bool waits = true;
  while (!std::ranges::all_of(nodes, &NodeRecording::has_tables)) {
    for (NodeRecording& node : nodes) {
      if (node.has_tables()) continue;
      SFT_ASSIGN_OR_RETURN(const auto piece, node.Hear(gone));
      if (!piece) continue;
      v1::ProfileJobResponse response;
      if (piece->has_rank()) {
        *response.mutable_rank() = Checked(piece->rank());
        waits = false;
      } else if (waits) {
        response.set_waiting(Plain(piece->waiting(), kMostText));
      } else {
        continue;
      }
      if (!take(response)) return ReaderGone();
    }
  }
  return absl::OkStatus();
}

// One node's behind the other's, as one file.
absl::Status PassTraces(std::vector<NodeRecording>& nodes, const Profiling::Take& take,
                        const FileRelay::Gone& gone) {
  data::GzipFrame frame;
  const auto pass = [&](std::string bytes) {
    v1::ProfileJobResponse response;
    response.set_trace(std::move(bytes));
    return take(response);
  };
  if (!pass(frame.Begin(data::kTraceBegin))) return ReaderGone();
  for (NodeRecording& node : nodes) {
    while (!node.ended()) {
      SFT_ASSIGN_OR_RETURN(auto piece, node.Hear(gone));
      if (!piece || piece->trace().empty()) continue;
      if (!pass(std::move(*piece->mutable_trace()))) return ReaderGone();
    }
    for (const data::TextSum& sum : node.sums()) frame.Add(sum);
  }
  return pass(frame.End(data::kTraceEnd)) ? absl::OkStatus() : ReaderGone();
}

}  // namespace

absl::StatusOr<Profiling::Plan> Profiling::Find(const v1::ProfileJobRequest& request) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(request.name()));
  Plan plan;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const JobRecord job, store::FindJob(db, ref));
    SFT_RETURN_IF_ERROR(CheckJob(job));
    SFT_ASSIGN_OR_RETURN(const auto attempt, store::AttemptOfJob(db, job.id, job.attempt));
    if (!attempt.has_value()) return Internal(fmt::format("job {} has no attempt", job.id));
    SFT_ASSIGN_OR_RETURN(const auto members, store::MembersOf(db, attempt->uid));
    int world = 0;
    for (const MemberRecord& member : members) world += static_cast<int>(member.slots.size());
    SFT_ASSIGN_OR_RETURN(const std::set<int> ranks, RanksOf(request, world));
    plan.job_id = job.id;
    plan.attempt_uid = attempt->uid;
    for (const MemberRecord& member : members) {
      Place place{.node = member.status.node, .ranks = {}};
      const int end = member.first_rank + static_cast<int>(member.slots.size());
      std::ranges::copy_if(ranks, std::back_inserter(place.ranks),
                           [&](int rank) { return rank >= member.first_rank && rank < end; });
      if (!place.ranks.empty()) plan.places.push_back(std::move(place));
    }
    return absl::OkStatus();
  }));
  return plan;
}

// Ends with the call.
class Profiling::Claim {
 public:
  Claim(Profiled& profiled, std::string id) : profiled_(profiled), id_(std::move(id)) {
    const MutexLock lock(profiled_.mutex);
    taken_ = profiled_.ids.insert(id_).second;
  }
  ~Claim() {
    const MutexLock lock(profiled_.mutex);
    if (taken_) profiled_.ids.erase(id_);
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  bool taken() const { return taken_; }

 private:
  Profiled& profiled_;
  const std::string id_;
  bool taken_ = false;
};

absl::Status Profiling::Profile(const v1::ProfileJobRequest& request, const Take& take,
                                const FileRelay::Gone& gone) {
  SFT_RETURN_IF_ERROR(CheckSteps(request.steps()));
  SFT_ASSIGN_OR_RETURN(const Plan plan, Find(request));
  const Claim claim(profiled_, plan.job_id);
  if (!claim.taken()) {
    return Aborted(
        fmt::format("job {} is being profiled by another call: try again when that one "
                    "has ended",
                    plan.job_id));
  }
  std::vector<NodeRecording> nodes;
  for (const Place& place : plan.places) {
    v1::RecordSteps order;
    order.set_attempt_uid(plan.attempt_uid);
    order.set_steps(request.steps() == 0 ? kDefaultSteps : request.steps());
    for (const int rank : place.ranks) order.add_ranks(rank);
    SFT_ASSIGN_OR_RETURN(auto transfer, relay_.Record(place.node, order));
    nodes.emplace_back(place.node, std::set<int>(place.ranks.begin(), place.ranks.end()),
                       std::move(transfer));
  }
  SFT_RETURN_IF_ERROR(PassTables(nodes, take, gone));
  return PassTraces(nodes, take, gone);
}

}  // namespace sft::server
