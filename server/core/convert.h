#pragma once

#include <google/protobuf/timestamp.pb.h>

#include <string>
#include <vector>

#include "server/blob/metric_log.h"
#include "server/state/records.h"
#include "sft/v1/artifact.pb.h"
#include "sft/v1/job.pb.h"
#include "sft/v1/node.pb.h"
#include "sft/v1/worker_service.pb.h"

// Conversion between rows and messages; no decisions.

namespace sft::server {

google::protobuf::Timestamp ToTimestamp(int64_t unix_micros);

v1::Verdict ToProto(const Verdict& verdict);
Verdict FromProto(const v1::Verdict& verdict);

// A point of the wire is a step or a validation with all of its values, which are points of their
// own in a MetricLog: they follow their validation. Values without one are left out.
std::vector<v1::Metric> MetricsOf(const std::vector<MetricPoint>& points);
void AddPoints(const v1::Metric& metric, int attempt, std::vector<MetricPoint>& points);

v1::JobEvent ToProto(const EventRecord& event);
v1::Artifact ToProto(const ArtifactRecord& artifact);
v1::Slot ToProto(const SlotRecord& slot);
SlotRecord FromProto(const v1::Slot& slot, const std::string& node);
v1::Model ToProto(const ModelRecord& model);
ModelRecord FromProto(const v1::Model& model, const std::string& node);
// Leaves out its nodes.
v1::Attempt ToProto(const AttemptRecord& attempt);
v1::Node ToProto(const NodeRecord& node);

// Converts only the row, with the JSON of its settings where it is given: the job manager adds
// attempt, nodes, progress and artifacts.
v1::Job ToProto(const JobRecord& job, std::string spec_text = "");
// "low", "normal", "high", "urgent": names of spec::Priority.
std::string PriorityName(int priority);

}  // namespace sft::server
