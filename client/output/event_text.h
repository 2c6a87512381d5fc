#pragma once

#include <string>

#include "sft/v1/job_service.pb.h"

namespace sft::client {

// An event of a job's history for people: what it says, as a sentence, and its kind as a word. Both
// may come from a node or a newer server: nothing in them reaches the terminal as it is.
std::string EventText(const v1::JobEvent& event);
std::string EventKind(const v1::JobEvent& event);

}  // namespace sft::client
