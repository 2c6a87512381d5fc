#include "server/core/mail_rules.h"

#include <absl/strings/ascii.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/mail_address.h"

namespace sft::server {

std::string MailRules::Problem(const std::string& address) const {
  if (!IsMailAddress(address)) {
    return fmt::format("\"{}\" is not the address of a mailbox such as ann@example.com",
                       address.substr(0, 80));
  }
  if (!sends) {
    return "this server sends no mail: an operator starts it with --mail-relay (docs/webhooks.md)";
  }
  const std::string domain = absl::AsciiStrToLower(address.substr(address.find('@') + 1));
  const bool allowed =
      domains.empty() || std::ranges::any_of(domains, [&](const std::string& each) {
        const std::string name = absl::AsciiStrToLower(each);
        return domain == name || domain.ends_with("." + name);
      });
  if (allowed) return "";
  return fmt::format("this server sends mail to {} alone, which an operator sets (--mail-to)",
                     fmt::join(domains, ", "));
}

}  // namespace sft::server
