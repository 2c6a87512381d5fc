#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/io/file.h"
#include "worker/channel/event.h"

namespace sft::rank {

// The event file of one process (worker/channel/event.h), read by the worker daemon while it grows.
// Appended to, never rewritten: each event is one write of one line. Not thread-safe.
class EventLog {
 public:
  // Opens or creates the file. Throws InfrastructureError.
  static EventLog Open(const std::string& path, const Clock& clock);

  // Throws InfrastructureError when the line cannot be written; the file then ends with the last
  // whole line.
  void Write(channel::EventBody body);
  // Makes what was written durable: at the end of the process.
  void Sync();

 private:
  EventLog(io::AppendFile file, const Clock& clock) : file_(std::move(file)), clock_(clock) {}

  io::AppendFile file_;
  const Clock& clock_;
};

}  // namespace sft::rank
