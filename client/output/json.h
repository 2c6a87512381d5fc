#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "sft/v1/artifact.pb.h"
#include "sft/v1/cluster_service.pb.h"
#include "sft/v1/job.pb.h"
#include "sft/v1/job_service.pb.h"
#include "sft/v1/node.pb.h"

// The stable JSON that --json prints; described in docs/cli.md. Members are only ever added.

namespace sft::client {

// JSON text for a terminal: the same values, with control characters as "\u009b". (Those of the
// text itself are line breaks alone; all others are in its strings.)
std::string PrintedJson(std::string_view json);
// In place of sft::DumpJson, for what is printed.
std::string DumpJson(const nlohmann::json& value, int indent = -1);
std::string DumpJson(const nlohmann::ordered_json& value, int indent = -1);

using Json = nlohmann::ordered_json;

Json JobJson(const v1::Job& job);
Json OutlookJson(const v1::Outlook& outlook);
Json MetricJson(const v1::Metric& metric);
Json CurveJson(const v1::CurveSeries& series);
Json EventJson(const v1::JobEvent& event);
Json ClusterEventJson(const v1::ClusterEvent& event);
Json CheckpointJson(const v1::Checkpoint& checkpoint);
Json NodeJson(const v1::Node& node);
// UP, SUSPECT, CORDONED, DRAINING (it still has jobs), DRAINED.
std::string NodeStateName(const v1::Node& node);
Json VariantJson(const v1::Variant& variant);
Json ModelJson(const v1::NodeModel& model);
Json ProblemJson(const v1::Problem& problem);

// Part of a step in which computing waited for other ranks, over all axes.
double ExposedShare(const google::protobuf::RepeatedPtrField<v1::AxisTraffic>& traffic);

// "PENDING", ... without a prefix.
std::string StateName(v1::Job::State state);
// "sft", "generate", "serve": as job.kind.
std::string KindName(v1::Job::Kind kind);
bool IsEnded(v1::Job::State state);
// Whether the steps of such a job are answers.
bool CountsAnswers(v1::Job::Kind kind);

}  // namespace sft::client
