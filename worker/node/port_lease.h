#pragma once

#include <string>

#include "common/base/status.h"
#include "common/io/file.h"

namespace sft::worker {

// A free TCP port of an address, held by a bound socket until Release, right before the process
// that listens there is started.
class PortLease {
 public:
  PortLease() = default;
  static absl::StatusOr<PortLease> Take(const std::string& address);

  // "host:port"; empty for an empty lease. Stays after Release.
  const std::string& endpoint() const { return endpoint_; }
  void Release() { socket_ = io::UniqueFd(); }

 private:
  io::UniqueFd socket_;
  std::string endpoint_;
};

}  // namespace sft::worker
