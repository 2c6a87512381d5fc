#pragma once

#include <functional>
#include <string>

#include "client/output/json.h"
#include "sft/v1/job.pb.h"

namespace sft::client {

// Why a job waits and what would start it sooner, as lines with a label each ("" for one that goes
// on with the line above).
void PrintWait(const v1::WaitExplanation& wait,
               const std::function<void(const char* label, const std::string& text)>& line);

Json WaitJson(const v1::WaitExplanation& wait);

}  // namespace sft::client
