#pragma once

#include <string_view>

namespace sft::obs {

// Notifies the service manager that started this process, by the protocol of sd_notify(3):
// "READY=1" once, then "WATCHDOG=1" from time to time, sent by the thread whose progress shows that
// the process works, and "STOPPING=1" when it begins to end. Does nothing where there is no such
// manager (NOTIFY_SOCKET is not set). Thread-safe.
void TellServiceManager(std::string_view state);

}  // namespace sft::obs
