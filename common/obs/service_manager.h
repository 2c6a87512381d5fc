#pragma once

#include <string_view>

namespace sft::obs {

// Says something to the service manager that started this process, in the words of sd_notify(3):
// "READY=1", and then "WATCHDOG=1" from time to time by the thread whose work shows that the
// process is of use. Nothing happens where no such manager is (NOTIFY_SOCKET is not set).
// Thread-safe.
void TellServiceManager(std::string_view state);

}  // namespace sft::obs
