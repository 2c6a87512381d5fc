#pragma once

#include <functional>
#include <string>

#include "common/base/status.h"

namespace sft::hub {

// Which hub a program asks, and as whom.
struct HubAccess {
  std::string endpoint;  // an address of http or https, without a slash at its end
  std::string token;     // empty: none
  std::string ca_file;   // empty: what HttpOptionsOf finds
  bool offline = false;  // nothing is asked
};

// From options (each may be empty), HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE. INVALID_ARGUMENT for
// an address or a token that is none.
absl::StatusOr<HubAccess> HubAccessOf(
    const std::string& endpoint, const std::string& token_file, const std::string& ca_file,
    const std::function<std::string(const std::string&)>& environment);

}  // namespace sft::hub
