#pragma once

#include <string>
#include <vector>

namespace sft::server {

// Where this server sends mail to. Values.
struct MailRules {
  bool sends = false;                // it has a relay
  std::vector<std::string> domains;  // only to these and what is below them; empty: to all

  // Why the address may not be told of anything, for people; empty: it may.
  std::string Problem(const std::string& address) const;
};

}  // namespace sft::server
