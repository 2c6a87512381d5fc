#pragma once

#include <optional>
#include <string>
#include <utility>

#include "common/io/file.h"
#include "worker/channel/launch.h"

namespace sft::rank {

// Commands from the shim: JSON lines (worker/channel/launch.h, Command) on standard input, looked
// at between steps without waiting. The end of the input means that the shim is gone: the rank
// stops too. Not thread-safe.
class CommandInput {
 public:
  // Borrows `fd`. Input that is neither a pipe nor a socket (a terminal, /dev/null: a rank started
  // by hand) is not read and never ends.
  explicit CommandInput(int fd);

  // Reads what has come. Lines that are no command are reported in the log and skipped.
  void Poll();

  // Why to stop: "" while there is no reason.
  const std::string& stop_reason() const { return stop_reason_; }
  // True if a checkpoint was asked for since the last call.
  bool TakeCheckpoint() { return std::exchange(checkpoint_, false); }
  // The last "profile" that has come since the last call.
  std::optional<channel::Command> TakeProfile() { return std::exchange(profile_, std::nullopt); }

 private:
  void Handle(const std::string& line);

  int fd_;
  bool open_;
  std::string pending_;
  std::string stop_reason_;
  bool checkpoint_ = false;
  std::optional<channel::Command> profile_;
};

}  // namespace sft::rank
