#pragma once

#include <string>

#include "common/base/status.h"

namespace sft::obs {

// Options of a process's log.
struct LogOptions {
  std::string process;         // "sft-server": in every line
  std::string level = "info";  // debug, info, warn, error
};

// Makes spdlog's default logger write lines to standard error, with UTC time, level and thread:
// `2026-01-31T12:34:56.789Z sft-server info: text`. Call once, at the start of main; after it
// `spdlog::info(...)` and the rest may be called from any thread.
absl::Status InitLogging(const LogOptions& options);

// Names the calling thread for debuggers and `top -H`; only the first 15 bytes are kept.
void NameThread(const std::string& name);

}  // namespace sft::obs
