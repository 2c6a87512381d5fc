#pragma once

#include <string>

#include "server/state/records.h"
#include "sft/v1/job.pb.h"

namespace sft::server {

v1::Preference ToProto(const PreferenceFigures& figures);
PreferenceFigures FromProto(const v1::Preference& proto);
v1::AxisTraffic ToProto(const AxisTraffic& traffic);
AxisTraffic FromProto(const v1::AxisTraffic& proto);
v1::Progress ToProto(const Progress& progress);
Progress FromProto(const v1::Progress& proto);

namespace store {

// The column of an attempt's progress: a serialized sft.v1.Progress. One that cannot be read shows
// no progress.
std::string ProgressColumn(const Progress& progress);
Progress ParseProgress(const std::string& column);

}  // namespace store
}  // namespace sft::server
