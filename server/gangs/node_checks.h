#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/state/records.h"
#include "sft/v1/worker_service.pb.h"

// What a node says, held against what it was given: a node is trusted with the attempts on it and
// with nothing else. Pure. One function for each kind of message; INVALID_ARGUMENT names the field
// and its value. What only accompanies something that must not be lost (the text of a verdict) is
// made to fit instead.

namespace sft::server {

// An attempt's part on one node, as it was dispatched there.
struct Dispatched {
  std::string attempt_uid, job_id, node;
  int first_rank = 0, ranks = 0;
  int world_size = 0;
  std::vector<std::string> nodes;  // of the whole gang
};
// FAILED_PRECONDITION when the attempt is not on the node.
absl::StatusOr<Dispatched> DispatchedTo(const std::string& node, const AttemptRecord& attempt,
                                        const std::vector<MemberRecord>& members);

absl::Status CheckLog(const v1::AppendLogRequest& request, const Dispatched& part);
// The request without its events, and one of them.
absl::Status CheckEvents(const v1::AppendEventsRequest& request, const Dispatched& part);
absl::Status CheckEvent(const v1::RankEvent& event);
absl::Status CheckArtifact(const v1::CommitArtifactRequest& request, const Dispatched& part);
absl::Status CheckCheckpoint(const v1::CommitCheckpointRequest& request, const Dispatched& part);
// Without its verdict, which Bounded makes fit, and its progress.
absl::Status CheckStatus(const v1::AttemptStatus& status);
absl::Status CheckProgress(const v1::Progress& progress);
v1::Verdict Bounded(v1::Verdict verdict, const Dispatched& part);

absl::Status CheckNode(const v1::Register& message);
absl::Status CheckSlots(const google::protobuf::RepeatedPtrField<v1::Slot>& slots);
absl::Status CheckModel(const v1::Model& model);
absl::Status CheckDisk(const v1::NodeDisk& disk);
absl::Status CheckFacts(const v1::NodeFacts& facts);
// Of a clock, in microseconds since the Unix epoch.
absl::Status CheckTime(int64_t time_us);

// A note of a rank, or another text that a person reads, as it is stored.
std::string BoundedText(const std::string& text);

}  // namespace sft::server
