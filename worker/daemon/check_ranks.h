#pragma once

#include <string>

#include "common/obs/check_report.h"
#include "worker/base/setup.h"

namespace sft::worker {

// Has two ranks meet over Gloo at the node's address, where those of other nodes come too.
void CheckMeeting(const NodeSetup& setup, const std::string& library_path,
                  obs::CheckReport& report);

// Checks the process's limits under which long jobs would be ended or fail.
void CheckLimits(obs::CheckReport& report);

}  // namespace sft::worker
