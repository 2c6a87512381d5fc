#pragma once

#include <string>

#include "sft/v1/job_service.pb.h"

namespace sft::client {

// Formats an event of a job's history for people: its text as a sentence, and its kind as a word.
// Both may come from a node or a newer server, so control characters are escaped.
std::string EventText(const v1::JobEvent& event);
std::string EventKind(const v1::JobEvent& event);

}  // namespace sft::client
